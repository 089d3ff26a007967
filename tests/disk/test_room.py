"""Bytes and segments of a store on real files: cap, floor, exact books, reclaim, and who owns a directory."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.errors import NoRoom, SegmentGone
from blockyard.worker.disk.format.names import log_name, segment_name
from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.ownership import DirectoryOwned, Ownership
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.segments import SegmentStore
from blockyard.worker.disk.settings import StoreSettings
from support.disk_bench import SHAPES, SMALL, allocated, open_store, outcome, put
from support.disk_faults import READS, Fault, FaultyDirectory, Kind
from support.disk_samples import empty_areas

A, B, _ = SHAPES


def du(path: Path) -> int:
    return int(
        subprocess.run(["du", "-s", "-B1", str(path)], capture_output=True, check=True, timeout=20).stdout.split()[0]
    )


def fill(store: SegmentStore, count: int, start: int = 0) -> list[Extent]:
    return [put(store, start + number, SHAPES[number % 3]) for number in range(count)]


# Room.


def test_du_never_exceeds_the_cap_and_what_is_new_is_read(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents: dict[int, Extent] = {}
    for number in range(400):
        while True:
            try:
                extents[number] = put(store, number, SHAPES[number % 3])
                break
            except NoRoom as error:
                assert error.limit == "cap"
                assert store.reclaim(store.segments()[0].number)
        if number % 20 == 0:
            assert du(real.path) <= SMALL.cap_bytes
    assert store.used_bytes == allocated(real) == du(real.path) <= SMALL.cap_bytes
    there = [number for number, extent in extents.items() if outcome(store, extent) == "right"]
    assert there == list(range(there[0], 400))
    assert store.used_bytes > SMALL.cap_bytes // 2


def test_the_floor_is_kept(real: RealDirectory) -> None:
    free = real.space().free
    store, _ = open_store(real, SMALL._replace(floor_bytes=free))
    with pytest.raises(NoRoom) as raised:
        put(store, 1, A)
    assert raised.value.limit == "floor"
    assert allocated(real) == real.entries().own_bytes


def test_what_was_used_is_the_same_after_a_restart(real: RealDirectory) -> None:
    store, _ = open_store(real)
    fill(store, 40)
    store.close()
    used = store.used_bytes
    store, started = open_store(real)
    assert store.used_bytes == used == du(real.path)
    assert started.to_scan == []
    assert sum(one.extents for one in store.segments()) == len(started.extents) == 40


def test_files_of_others_count_and_stay(real: RealDirectory) -> None:
    (real.path / "notes.txt").write_bytes(bytes(3 * PAGE))
    store, _ = open_store(real)
    assert store.used_bytes == du(real.path) > 3 * PAGE
    for _ in range(40):
        try:
            fill(store, 3)
        except NoRoom:
            assert store.reclaim(store.segments()[0].number)
    assert (real.path / "notes.txt").exists()
    assert du(real.path) <= SMALL.cap_bytes


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (SMALL._replace(segment_bytes=2 * PAGE), "segment_bytes is 8192"),
        (SMALL._replace(segment_bytes=20 * PAGE + 1), "segment_bytes is 81921"),
        (SMALL._replace(cap_bytes=24 * PAGE), "cap_bytes is 98304, must be at least"),
        (SMALL._replace(floor_bytes=-1), "floor_bytes is -1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(real: RealDirectory, settings: StoreSettings, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        open_store(real, settings)


@pytest.mark.parametrize("kind", [Kind.ENOSPC, Kind.EIO, Kind.EROFS])
@pytest.mark.parametrize("operation", ["create", "pwritev", "entries", "space", "truncate", "unlink", "sync"])
def test_after_an_error_normal_work_goes_on(real: RealDirectory, kind: Kind, operation: str) -> None:
    faulty = FaultyDirectory(real)
    settings = SMALL._replace(cap_bytes=4 << 20)
    store, _ = open_store(faulty, settings)
    extents = fill(store, 3)
    faulty.inject(Fault(kind, frozenset({operation}), times=0))
    for number in range(10, 40):
        try:
            extents.append(put(store, number, B))
        except (OSError, NoRoom):
            continue
    faulty.heal()
    assert [outcome(store, extent) for extent in extents] == ["right"] * len(extents)
    later = fill(store, 6, start=100)
    assert [outcome(store, extent) for extent in later] == ["right"] * 6
    store.sync()
    oldest = store.segments()[0].number
    faulty.inject(Fault(kind, frozenset({operation})))
    try:
        done = store.reclaim(oldest)
    except OSError:
        done = store.reclaim(oldest)
    assert done
    faulty.heal()
    store.close()
    store, _ = open_store(real, settings)
    assert store.used_bytes == du(real.path) <= settings.cap_bytes


# Reclaim.


def test_a_segment_goes_only_after_its_readers(real: RealDirectory) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty)
    extent = put(store, 1, A)
    results: list[str] = []
    faulty.inject(Fault(Kind.HUNG, READS))
    reader = threading.Thread(target=lambda: results.append(outcome(store, extent)))
    reader.start()
    while not faulty.hanging:
        pass
    assert not store.reclaim(extent.segment)
    assert outcome(store, extent) == "gone", "nobody begins to read it any more"
    assert (real.path / segment_name(extent.segment)).exists()
    faulty.heal()
    reader.join()
    assert results == ["right"]
    assert store.reclaim(extent.segment)
    assert store.reclaim(extent.segment), "asking again is no mistake"
    assert real.entries().entries == ()
    assert store.used_bytes == du(real.path)


def test_the_growing_segment_can_be_reclaimed(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extent = put(store, 1, A)
    assert store.reclaim(extent.segment)
    assert not (real.path / log_name(extent.segment)).exists()
    assert outcome(store, put(store, 2, A)) == "right"
    assert store.drop(extent)


def test_one_hung_write_holds_up_no_read(real: RealDirectory) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty)
    extents = fill(store, 3)
    for operations in (frozenset({"pwritev"}), frozenset({"create"})):
        faulty.inject(Fault(Kind.HUNG, operations))
        writer = threading.Thread(target=fill, args=(store, 12))
        writer.start()
        while not faulty.hanging:
            pass
        assert [outcome(store, extent) for extent in extents] == ["right"] * 3
        faulty.heal()
        faulty._released.clear()
        writer.join()


def test_many_threads_at_once(real: RealDirectory) -> None:
    store, _ = open_store(real, SMALL._replace(cap_bytes=8 << 20))
    found: list[list[str]] = []

    def work(start: int) -> None:
        extents = fill(store, 20, start)
        assert store.drop(extents[0])
        found.append([outcome(store, extent) for extent in extents])
        store.sync()

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["right"] * 20] * 6
    store.close()
    used = store.used_bytes
    store, started = open_store(real, SMALL._replace(cap_bytes=8 << 20))
    assert len(started.extents) == 6 * 19
    assert store.used_bytes == used == du(real.path)


# Ownership.


def test_a_directory_has_one_owner(folder: Path) -> None:
    first = Ownership(folder, "worker node-a, process 1")
    with pytest.raises(DirectoryOwned, match=r"in use by worker node-a, process 1"):
        Ownership(folder, "worker node-b")
    first.close()
    Ownership(folder, "worker node-b").close()


def test_gone_is_told_apart(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extent = put(store, 1, A)
    assert store.reclaim(extent.segment)
    with pytest.raises(SegmentGone, match="segment 0 was reclaimed"):
        store.read(extent, empty_areas(A))
