"""Starts on real files: logs that are lost, cut short or damaged, files of others, starts that fail themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format import names
from blockyard.worker.disk.format.values import NO_SALT, Extent
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.segments import SegmentStore
from support.disk_bench import SHAPES, SMALL, allocated, open_store, outcome, put
from support.disk_faults import READS, WRITES, Fault, FaultyDirectory, Kind
from support.disk_samples import checksums, payload

A, B, _ = SHAPES


def fill(store: SegmentStore, count: int, start: int = 0) -> list[Extent]:
    return [put(store, start + number, SHAPES[number % 3]) for number in range(count)]


def found(directory: RealDirectory | FaultyDirectory) -> tuple[SegmentStore, list[Extent]]:
    """A start with all its scans."""
    store, started = open_store(directory, seed=99)
    extents = [*started.extents, *(extent for number in started.to_scan for extent in store.scan(number))]
    assert all(one.scanned for one in store.segments())
    return store, sorted(extents, key=lambda extent: extent.seq)


def test_a_killed_worker_loses_nothing_that_was_acknowledged(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = fill(store, 20)
    store, started = open_store(real, seed=1)
    assert started.extents == extents, "the logs tell all, before any scan"
    assert len(started.to_scan) == 1
    assert [outcome(store, extent) for extent in extents] == ["right"] * 20
    assert store.scan(started.to_scan[0]) == []
    _, started = open_store(real, seed=2)
    assert (started.extents, started.to_scan) == (extents, [])


def test_a_dropped_extent_is_not_found_again(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = fill(store, 12)
    gone = [extents[0], extents[5], extents[11]]
    assert all(store.drop(extent) for extent in gone)
    kept = [extent for extent in extents if extent not in gone]
    for _ in range(2):
        store, again = found(real)
        assert again == kept
        store.close()
    assert sum(one.extents for one in store.segments()) == 9


def test_a_drop_before_the_scan_lasts_with_the_scan(real: RealDirectory) -> None:
    extents = fill(open_store(real)[0], 3)
    store, started = open_store(real, seed=1)
    assert not store.drop(extents[1]), "a kill before the scan would bring it back"
    store.scan(started.to_scan[0])
    assert found(real)[1] == [extents[0], extents[2]]


def spoil(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.clear(),
        lambda data: data.__delitem__(slice(200, None)),
        lambda data: data.__setitem__(slice(0, 64), bytes(64)),
        lambda data: data.__setitem__(300, data[300] ^ 4),
        lambda data: data.__setitem__(slice(64, None), bytes(len(data) - 64)),
        lambda data: data.__setitem__(-1, 1),
    ],
    ids=["empty", "cut", "no header", "a flipped bit", "no records", "more behind the end"],
)
def test_a_damaged_log_costs_a_scan(real: RealDirectory, sealed: bool, change: Callable[[bytearray], object]) -> None:
    store, _ = open_store(real)
    extents = fill(store, 4)
    if sealed:
        store.close()
    spoil(real.path / names.log_name(0), change)
    store, again = found(real)
    assert again == extents
    assert [outcome(store, extent) for extent in extents] == ["right"] * 4
    assert store.used_bytes == allocated(real)
    assert open_store(real, seed=3)[1].to_scan == []


def test_a_log_cut_at_any_length_costs_a_scan(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = fill(store, 2)
    store.close()
    path = real.path / names.log_name(0)
    whole = path.read_bytes()
    for length in range(0, len(whole.rstrip(b"\0")), 7):
        path.write_bytes(whole[:length])
        assert found(real)[1] == extents


def test_without_any_log_everything_is_found(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = fill(store, 30)
    for path in real.path.glob("*.log"):
        path.unlink()
    assert found(real)[1] == extents


def test_a_write_that_was_cut_short_is_not_taken_over(real: RealDirectory) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty)
    first = put(store, 1, A)
    faulty.inject(Fault(Kind.TORN, WRITES, where=0.5, name=".segment"))
    faulty.inject(Fault(Kind.EIO, WRITES, name=".log"))
    with pytest.raises(OSError, match="Input/output"):
        put(store, 2, A)
    third = put(store, 3, A)
    (real.path / names.log_name(0)).unlink()
    assert found(real)[1] == [first, third]


def test_an_extent_whose_record_failed_is_found_by_the_scan(real: RealDirectory) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty)
    first = put(store, 1, A)
    faulty.inject(Fault(Kind.TORN, WRITES, where=0.9, name=".log"))
    second = put(store, 2, A)
    third = put(store, 3, B)
    store, started = open_store(real)
    assert started.extents == [first]
    assert sorted(store.scan(0), key=lambda extent: extent.seq) == [second, third]


def test_numbers_and_seqs_are_not_used_again_while_a_scan_is_due(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = fill(store, 3)
    (real.path / names.log_name(0)).unlink()
    store, started = open_store(real)
    assert started.extents == []
    later = put(store, 9, A)
    assert later.segment > extents[-1].segment
    assert later.seq > extents[-1].seq
    assert store.scan(0) == extents


def with_version(data: bytearray, version: int) -> None:
    data[8:12] = version.to_bytes(4, "little")
    data[PAGE - 8 : PAGE] = xxhash.xxh3_64_intdigest(bytes(data[: PAGE - 8])).to_bytes(8, "little")


def test_another_version_is_reported_counted_and_left_alone(real: RealDirectory) -> None:
    store, _ = open_store(real)
    fill(store, 2)
    store.close()
    path = real.path / names.segment_name(0)
    spoil(path, lambda data: with_version(data, 2))
    before = path.read_bytes(), (real.path / names.log_name(0)).read_bytes()
    store, started = open_store(real)
    ((name, left, detail, _),) = started.troubles
    assert (name, left) == (path.name, True)
    assert "version 2" in detail
    assert store.used_bytes == allocated(real)
    assert put(store, 1, A).segment == 1
    assert (path.read_bytes(), (real.path / names.log_name(0)).read_bytes()) == before


@pytest.mark.parametrize("change", [lambda data: data.__setitem__(slice(0, PAGE), bytes(PAGE)), bytearray.clear])
def test_a_segment_without_a_header_goes(real: RealDirectory, change: Callable[[bytearray], object]) -> None:
    store, _ = open_store(real)
    fill(store, 2)
    spoil(real.path / names.segment_name(0), change)
    store, started = open_store(real)
    assert {trouble.left for trouble in started.troubles} == {False}
    assert real.entries().entries == ()
    assert store.used_bytes == allocated(real)


def test_what_was_half_made_goes(real: RealDirectory) -> None:
    for name in (names.temporary(names.log_name(4)), names.log_name(5)):
        (real.path / name).write_bytes(bytes(PAGE))
    _, started = open_store(real)
    assert {trouble.name for trouble in started.troubles} == {"0000000000000004.log.tmp", "0000000000000005.log"}
    assert real.entries().entries == ()


def test_a_segment_under_another_number_is_not_used(real: RealDirectory) -> None:
    store, _ = open_store(real)
    fill(store, 2)
    store.close()
    (real.path / names.segment_name(0)).rename(real.path / names.segment_name(3))
    _, started = open_store(real)
    assert started.extents == []
    assert any("says that it is segment 0" in trouble.detail for trouble in started.troubles)


@pytest.mark.parametrize("kind", [Kind.EIO, Kind.EROFS, Kind.ENOSPC])
def test_a_start_that_fails_anywhere_costs_nothing_for_good(folder: Path, kind: Kind) -> None:
    real = RealDirectory(folder, direct=False)
    store, _ = open_store(real)
    extents = fill(store, 8)
    step = 0
    while True:
        step += 1
        faulty = FaultyDirectory(real)
        faulty.inject(Fault(kind, at=step))
        with contextlib.suppress(OSError):
            found(faulty)
        store, again = found(real)
        assert again == extents
        assert [outcome(store, extent) for extent in extents] == ["right"] * 8
        store.sync()
        if not faulty.injected:
            break
    assert step > 5


def test_a_log_that_cannot_be_read_costs_a_scan(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = fill(store, 4)
    store.close()
    faulty = FaultyDirectory(real)
    faulty.inject(Fault(Kind.EIO, READS, name=".log", times=0))
    assert found(faulty)[1] == extents


def test_of_two_extents_of_a_key_the_later_one_comes_last(real: RealDirectory) -> None:
    store, _ = open_store(real)
    older = put(store, 1, A)
    areas = payload(older.key, A)
    newer = store.append(older.key, NO_SALT, A, checksums(areas, A), areas)
    assert found(real)[1] == [older, newer]


def test_an_empty_growing_segment_is_scanned_to_nothing(real: RealDirectory) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty)
    faulty.inject(Fault(Kind.EIO, WRITES, at=3))
    with pytest.raises(OSError, match="Input/output"):
        put(store, 1, A)
    store, again = found(real)
    assert again == []
    ((_, size, extents, growing, scanned),) = store.segments()
    assert (size, extents, growing, scanned) == (PAGE, 0, False, True)
    assert store.used_bytes == allocated(real) < SMALL.segment_bytes
