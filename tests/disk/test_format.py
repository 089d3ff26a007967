"""Headers and records: what is written is read; any damage is refused, and says what it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgpack
import pytest
import xxhash

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format import names
from blockyard.worker.disk.format.errors import Damage, Damaged, UnknownVersion
from blockyard.worker.disk.format.extent_header import ExtentHeader, parse_extent_header, require_same
from blockyard.worker.disk.format.log import (
    FRAME,
    LAYOUT,
    MAX_PAYLOAD,
    Drop,
    LogHeader,
    Put,
    Record,
    Seal,
    ShapeRecord,
    encode_frame,
    parse_log_header,
    parse_records,
)
from blockyard.worker.disk.format.segment_header import SegmentHeader, parse_segment_header
from blockyard.worker.disk.format.values import NO_SALT
from support.disk_samples import OTHER_UUID, UUID, digest, extent, shape

SEGMENT = SegmentHeader(UUID, 7, 64 * PAGE, 1_700_000_000_000_000_000)
EXTENT = ExtentHeader(UUID, extent(3), (2**64 - 1, 5))
LOG = LogHeader(UUID, 7, 64 * PAGE)

PARSERS: dict[str, tuple[bytes, Callable[[bytes], object], object]] = {
    "segment": (SEGMENT.pack(), parse_segment_header, SEGMENT),
    "extent": (EXTENT.pack(), lambda data: parse_extent_header(data, 7), EXTENT),
    "log": (LOG.pack(), parse_log_header, LOG),
}
ALL = pytest.mark.parametrize("which", PARSERS)

RECORDS: list[Record] = [
    ShapeRecord(0, digest("world"), "a-model", 0, 256, 0, 1, 2, 4196),
    Put(0, PAGE, 1, digest("key", 0), NO_SALT),
    Put(0, 4 * PAGE, 2, digest("key", 1), NO_SALT),
    Drop(PAGE, 1),
    Seal(7 * PAGE),
]


def damage_of(act: Callable[[], object]) -> Damage:
    with pytest.raises(Damaged) as raised:
        act()
    assert str(raised.value)
    return raised.value.damage


def log_bytes(records: list[Record]) -> bytes:
    return LOG.pack() + b"".join(encode_frame(UUID, number, record) for number, record in enumerate(records))


# Headers.


@ALL
def test_a_header_comes_back(which: str) -> None:
    data, parse, value = PARSERS[which]
    assert parse(data) == value


@ALL
def test_every_flipped_bit_is_refused(which: str) -> None:
    data, parse, _ = PARSERS[which]
    page = bytearray(data)
    for bit in range(len(page) * 8):
        page[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            parse(bytes(page))
        page[bit // 8] ^= 1 << bit % 8


@ALL
def test_every_length_that_is_too_short_is_refused(which: str) -> None:
    data, parse, _ = PARSERS[which]
    for length in range(len(data)):
        assert damage_of(lambda length=length: parse(data[:length])) is Damage.TRUNCATED  # type: ignore[misc]


@ALL
def test_zeros_are_refused(which: str) -> None:
    data, parse, _ = PARSERS[which]
    assert damage_of(lambda: parse(bytes(len(data)))) is Damage.MAGIC


@ALL
def test_another_version_is_no_damage(which: str) -> None:
    data, parse, _ = PARSERS[which]
    later = bytearray(data[:-8])
    later[8:12] = (2).to_bytes(4, "little")
    with pytest.raises(UnknownVersion, match="version 2; this Blockyard reads version 1"):
        parse(bytes(later) + xxhash.xxh3_64_digest(bytes(later))[::-1])


IMPOSSIBLE = {
    "areas": ExtentHeader(UUID, extent(of=shape()._replace(areas=0)), ()),
    "part": ExtentHeader(UUID, extent(of=shape()._replace(part=1)), (1, 2)),
    "area_bytes": ExtentHeader(UUID, extent(of=shape()._replace(area_bytes=0)), (1, 2)),
    "offset": ExtentHeader(UUID, extent(offset=PAGE + 512), (1, 2)),
    "area_checksums": ExtentHeader(UUID, extent(), (1, 2, 3)),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_value_that_nobody_writes_is_refused(name: str) -> None:
    data = IMPOSSIBLE[name].pack()
    with pytest.raises(Damaged, match=name) as raised:
        parse_extent_header(data, 7)
    assert raised.value.damage is Damage.VALUE


@pytest.mark.parametrize("size", [0, PAGE, 2 * PAGE + 1])
def test_a_segment_of_an_impossible_size_is_refused(size: int) -> None:
    assert damage_of(lambda: parse_segment_header(SEGMENT._replace(segment_bytes=size).pack())) is Damage.VALUE


def test_the_header_of_anything_else_is_refused_by_name() -> None:
    wanted = EXTENT.extent
    others = {
        "segment": (OTHER_UUID, wanted),
        "key": (UUID, wanted._replace(key=digest("other"))),
        "salt_tag": (UUID, wanted._replace(salt_tag=b"another!")),
        "shape": (UUID, wanted._replace(shape=shape(world=1))),
        "offset": (UUID, wanted._replace(offset=2 * PAGE)),
        "seq": (UUID, wanted._replace(seq=99)),
    }
    require_same(EXTENT, UUID, wanted)
    for name, (uuid, other) in others.items():
        with pytest.raises(Damaged, match=name) as raised:
            require_same(EXTENT, uuid, other)
        assert raised.value.damage is Damage.IDENTITY


# The log.


def test_records_come_back_up_to_the_zeros() -> None:
    data = log_bytes(RECORDS)
    for tail in (b"", bytes(1), bytes(PAGE)):
        parsed = parse_records(data + tail, UUID)
        assert (parsed.records, parsed.end, parsed.damage) == (RECORDS, len(data), None)


def test_another_library_reads_the_records() -> None:
    frame = encode_frame(UUID, 0, RECORDS[1])
    assert msgpack.unpackb(frame[FRAME.size :]) == ["put", 0, PAGE, 1, digest("key", 0), NO_SALT]


def test_every_flipped_bit_ends_the_log_there() -> None:
    data = bytearray(log_bytes(RECORDS[:3]))
    ends = [len(log_bytes(RECORDS[:count])) for count in range(4)]
    for bit in range(ends[0] * 8, len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        parsed = parse_records(bytes(data) + bytes(64), UUID)
        assert parsed.damage is not None
        before = max(count for count in range(4) if ends[count] <= bit // 8)
        assert parsed.records == RECORDS[:before]
        data[bit // 8] ^= 1 << bit % 8


def test_every_length_that_is_too_short_ends_the_log_there() -> None:
    whole, before = log_bytes(RECORDS), len(log_bytes(RECORDS[:-1]))
    for length in range(before + 1, len(whole)):
        for tail in (b"", bytes(PAGE)):
            if whole[length:].strip(b"\0") == b"" and tail:
                continue  # what was cut off were zeros
            parsed = parse_records(whole[:length] + tail, UUID)
            assert parsed.records == RECORDS[:-1]
            assert parsed.damage is not None


def test_two_records_that_changed_places_are_refused() -> None:
    frames = [encode_frame(UUID, number, record) for number, record in enumerate(RECORDS)]
    swapped = LOG.pack() + b"".join([frames[0], frames[2], frames[1], *frames[3:]])
    parsed = parse_records(swapped, UUID)
    assert parsed.records == RECORDS[:1]
    assert parsed.damage is not None and parsed.damage.damage is Damage.ORDER


def test_a_record_that_is_missing_is_noticed() -> None:
    frames = [encode_frame(UUID, number, record) for number, record in enumerate(RECORDS)]
    parsed = parse_records(LOG.pack() + b"".join(frames[:2] + frames[3:]), UUID)
    assert parsed.damage is not None and parsed.damage.damage is Damage.ORDER
    lost = LOG.pack() + frames[0] + bytes(len(frames[1])) + frames[2]
    parsed = parse_records(lost, UUID)
    assert (parsed.records, parsed.damage is not None) == (RECORDS[:1], True)


def test_the_log_of_another_segment_is_refused() -> None:
    parsed = parse_records(log_bytes(RECORDS), OTHER_UUID)
    assert parsed.records == []
    assert parsed.damage is not None and parsed.damage.damage is Damage.CHECKSUM


@pytest.mark.parametrize(
    "payload",
    [
        msgpack.packb(["unheard-of", 1]),
        msgpack.packb(["drop", -1, 1]),
        msgpack.packb(["drop", 1]),
        msgpack.packb(["drop", 1, 2, 3]),
        msgpack.packb(["put", 0, PAGE, 1, b"short", NO_SALT]),
        b"\xc1",
    ],
)
def test_a_record_that_nobody_writes_is_refused(payload: bytes) -> None:
    head = UUID + len(payload).to_bytes(4, "little") + bytes(4)
    frame = FRAME.pack(len(payload), 0, xxhash.xxh3_64_intdigest(head + payload)) + payload
    parsed = parse_records(LOG.pack() + frame, UUID)
    assert parsed.damage is not None and parsed.damage.damage is Damage.VALUE


def test_a_frame_is_no_larger_than_allowed() -> None:
    parsed = parse_records(LOG.pack() + FRAME.pack(MAX_PAYLOAD + 1, 0, 0) + bytes(2 * PAGE), UUID)
    assert parsed.damage is not None and parsed.damage.damage is Damage.VALUE
    longest = ShapeRecord(2**32 - 1, digest("w"), "é" * 128, 2**32 - 1, 2**32 - 1, 65534, 65535, 16, 2**48 - 1)
    assert len(encode_frame(UUID, 2**32 - 1, longest)) < MAX_PAYLOAD


# Golden bytes: the format of a version does not change.


def test_the_bytes_of_version_1_stay_what_they_are() -> None:
    found = hashlib.sha256(b"".join([SEGMENT.pack(), EXTENT.pack(), log_bytes(RECORDS)])).hexdigest()
    assert found == "802ef12ee4d4fe25333d189fe0e1a89a1bf943c50a8a05a75c9db8142f17c352"


def test_the_header_of_a_log_is_where_records_begin() -> None:
    assert len(LOG.pack()) == LAYOUT.size == parse_records(b"", UUID).end


# Names.


def test_names_come_back_and_others_are_left_alone() -> None:
    assert names.segment_of(names.segment_name(255)) == 255
    assert names.log_of(names.log_name(255)) == 255
    for other in ("lock", "7.segment", "00000000000000FF.segment", "00000000000000ff.segment.tmp", "notes.log"):
        assert names.segment_of(other) is None and names.log_of(other) is None
    assert names.is_temporary(names.temporary(names.log_name(1)))
