"""The segment store on real files: what was put is read, verified; what anything damaged is not."""

from __future__ import annotations

import os

import pytest

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.errors import ExtentTooLarge
from blockyard.worker.disk.format.errors import Damage, Damaged
from blockyard.worker.disk.format.names import segment_name
from blockyard.worker.disk.format.values import NO_SALT, Extent, Shape, fitting_model
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.segments import SegmentStore
from blockyard.worker.pool import HostPool
from support.disk_bench import SHAPES, SMALL, open_store, outcome, put
from support.disk_faults import READS, WRITES, Fault, FaultyDirectory, Kind
from support.disk_samples import checksums, digest, empty_areas, payload, shape

A, B, _ = SHAPES
FULL = shape(areas=2, area_bytes=2 * PAGE)
"""Without padding: every byte counts."""
WIDE = SMALL._replace(cap_bytes=2 << 20, segment_bytes=128 * PAGE)
"""So wide that no test that uses it needs a second segment."""


def fill(store: SegmentStore, count: int, start: int = 0) -> list[Extent]:
    return [put(store, start + number, SHAPES[number % 3]) for number in range(count)]


# Reading and writing.


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "buffered"])
def test_what_was_put_is_read(real: RealDirectory, direct: bool) -> None:
    if direct and not real.direct:
        pytest.skip("no direct access here")
    store, started = open_store(RealDirectory(real.path, direct=direct))
    assert started == ([], [], [])
    extents = fill(store, 30)
    assert [outcome(store, extent) for extent in extents] == ["right"] * 30
    assert len({extent.segment for extent in extents}) > 1
    assert [extent.seq for extent in extents] == sorted({extent.seq for extent in extents})
    for extent in extents:
        assert extent.offset % PAGE == 0


def test_slots_of_the_host_pool_are_read_into_and_written_from(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extent = put(store, 1, B)
    with HostPool(bytes(16), pool_bytes=16 * PAGE, slab_bytes=16 * PAGE, slots=4) as pool:
        slot = [pool.memory.view[at : at + B.stride] for at in (4 * PAGE, 4 * PAGE + B.stride)]
        sums = store.read(extent, slot)
        assert sums == pool.checksums(4 * PAGE, areas=2, stride=B.stride, area_bytes=B.area_bytes)
        again = store.append(extent.key, NO_SALT, B, sums, slot)
        for view in slot:
            view.release()
    assert outcome(store, again) == "right"


def test_buffers_of_another_size_are_refused(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extent = put(store, 1, B)
    for areas in ([aligned(PAGE)] * 2, [aligned(B.stride)], [aligned(B.stride)] * 3):
        with pytest.raises(ValueError, match="must be 2 of 8192"):
            store.read(extent, areas)
        with pytest.raises(ValueError, match="must be 2 of 8192"):
            store.append(extent.key, NO_SALT, B, (1, 2), areas)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (A._replace(model="é" * 129), "model has 258 bytes"),
        (A._replace(model="a\0b"), "model has 3 bytes"),
        (A._replace(part=2, parts=2), "part is 2"),
        (A._replace(areas=2), "1 checksums for 2 areas"),
        (A._replace(areas=17), "1 checksums for 17 areas"),
    ],
)
def test_what_a_header_cannot_tell_is_refused(real: RealDirectory, of: Shape, told: str) -> None:
    store, _ = open_store(real)
    with pytest.raises(ValueError, match=told):
        store.append(digest("k"), NO_SALT, of, (1,), empty_areas(of))
    assert fitting_model("é" * 129) == "é" * 128
    assert fitting_model("a\0b") == "ab"
    assert put(store, 1, A._replace(model=fitting_model("é" * 129))).offset == PAGE


def test_the_place_of_a_write_that_failed_is_used_again(real: RealDirectory) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty)
    first = put(store, 1, A)
    for _ in range(30):
        faulty.inject(Fault(Kind.EIO, WRITES, name=".segment"))
        with pytest.raises(OSError, match="Input/output"):
            put(store, 2, B)
    second = put(store, 3, A)
    assert (second.segment, second.offset) == (first.segment, first.end)
    assert [outcome(store, extent) for extent in (first, second)] == ["right"] * 2


def test_an_extent_that_fits_no_segment_is_refused(real: RealDirectory) -> None:
    store, _ = open_store(real)
    large = shape(areas=1, area_bytes=SMALL.segment_bytes)
    with pytest.raises(ExtentTooLarge, match="does not fit a segment"):
        store.append(digest("k"), NO_SALT, large, (1,), [aligned(large.stride)])


def test_only_what_was_looked_for_is_read(real: RealDirectory) -> None:
    store, _ = open_store(real)
    first, second = put(store, 1, A), put(store, 2, A)
    others = [
        first._replace(key=second.key),
        first._replace(shape=A._replace(fingerprint=digest("other world"))),
        first._replace(shape=A._replace(part=1, parts=2)),
        first._replace(salt_tag=b"of other"),
        first._replace(seq=second.seq),
    ]
    for other in others:
        with pytest.raises(Damaged) as raised:
            store.read(other, empty_areas(other.shape))
        assert raised.value.damage is Damage.IDENTITY
    assert outcome(store, first._replace(offset=second.offset)) == "Damaged"
    assert outcome(store, first._replace(offset=first.offset + PAGE)) == "Damaged"
    assert outcome(store, first._replace(segment=99)) == "gone"


def test_bytes_that_do_not_match_their_checksums_are_never_read(real: RealDirectory) -> None:
    store, _ = open_store(real)
    areas = payload(digest("k"), A)
    extent = store.append(digest("k"), NO_SALT, A, [checksums(areas, A)[0] ^ 1], areas)
    with pytest.raises(Damaged) as raised:
        store.read(extent, empty_areas(A))
    assert raised.value.damage is Damage.PAYLOAD


@pytest.mark.parametrize("kind", [Kind.TORN, Kind.MISDIRECTED, Kind.FLIPPED])
def test_a_write_that_went_wrong_silently_is_a_miss(real: RealDirectory, kind: Kind) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty, WIDE)
    for number in range(8):
        before = put(store, 10 * number, A)
        faulty.inject(Fault(kind, WRITES, where=number / 8, name=".segment"))
        broken = put(store, 10 * number + 1, FULL)
        after = put(store, 10 * number + 2, A)
        assert outcome(store, broken) == "Damaged"
        assert outcome(store, after) == "right"
        # A write that lands elsewhere may hit a neighbour, which is a miss then.
        assert outcome(store, before) == ("Damaged" if kind is Kind.MISDIRECTED else "right")


@pytest.mark.parametrize("kind", [Kind.MISDIRECTED, Kind.FLIPPED, Kind.EIO])
def test_a_read_that_goes_wrong_is_a_miss_and_the_next_one_is_not(real: RealDirectory, kind: Kind) -> None:
    faulty = FaultyDirectory(real)
    store, _ = open_store(faulty, WIDE)
    extents = fill(store, 6)
    for number, extent in enumerate(extents):
        faulty.inject(Fault(kind, READS, where=number / 12))
        assert outcome(store, extent) in ("Damaged", "error")
        assert outcome(store, extent) == "right"


def test_2000_flipped_bits_of_payload_are_each_a_miss(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extent = put(store, 1, A)
    file = os.open(real.path / segment_name(extent.segment), os.O_RDWR)
    start = extent.offset + PAGE
    areas = empty_areas(A)
    try:
        for step in range(2000):
            at, bit = start + step * 4093 % PAGE, 1 << step % 8
            (byte,) = os.pread(file, 1, at)
            os.pwrite(file, bytes([byte ^ bit]), at)
            with pytest.raises(Damaged):
                store.read(extent, areas)
            os.pwrite(file, bytes([byte]), at)
    finally:
        os.close(file)
    assert outcome(store, extent) == "right"


def test_two_extents_that_changed_places_are_misses(real: RealDirectory) -> None:
    store, _ = open_store(real)
    one, other = put(store, 1, A), put(store, 2, A)
    size = A.extent_bytes
    path = real.path / segment_name(one.segment)
    data = bytearray(path.read_bytes())
    first, second = data[one.offset : one.offset + size], data[other.offset : other.offset + size]
    data[one.offset : one.offset + size], data[other.offset : other.offset + size] = second, first
    with path.open("r+b") as file:
        file.write(data)
    assert outcome(store, one) == outcome(store, other) == "Damaged"


def test_a_segment_that_was_put_back_from_earlier_is_a_miss(real: RealDirectory) -> None:
    store, _ = open_store(real, seed=1)
    old = put(store, 1, A)
    store.close()
    stale = (real.path / segment_name(old.segment)).read_bytes()
    assert store.reclaim(old.segment)
    store, _ = open_store(real, seed=2)
    new = put(store, 1, A)
    assert new[:-1] == old[:-1], "the same key in the same place"
    (real.path / segment_name(new.segment)).write_bytes(stale)
    assert outcome(store, new) == "Damaged"
    store, started = open_store(real, seed=3)
    assert (started.extents, started.to_scan) == ([], [])
    assert "another segment" in started.troubles[0].detail


def test_files_that_were_removed_or_cut_from_outside_are_misses(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = fill(store, 4)
    path = real.path / segment_name(extents[0].segment)
    os.truncate(path, extents[-1].offset + 100)
    assert [outcome(store, extent) for extent in extents] == ["right"] * 3 + ["Damaged"]
    path.unlink()
    assert outcome(store, extents[0]) == "error"
