"""A segment's log: which extents the segment holds, so that a start need not read it. Owns frames and records.

    header   64 bytes
    frame    length u32 | number u32 | checksum u64 | payload, one MessagePack array
    ...
    zeros    to the end of the file

A frame's checksum covers the segment's uuid, its length, its number and its payload: a record of another log, or one
that changed its place, is refused. Zeros in the place of a length are the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
import xxhash
from msgspec import Meta

from blockyard.worker.disk.format.errors import Damage, Damaged
from blockyard.worker.disk.format.layout import Field, Layout
from blockyard.worker.disk.format.values import MAX_AREAS, MAX_MODEL_BYTES, SALT_TAG_BYTES

MAX_PAYLOAD = 4096
FRAME = struct.Struct("<IIQ")
FRAME_FIELDS = (Field("length", "I"), Field("number", "I"), Field("checksum", "Q"))

LAYOUT = Layout(
    "log header", b"BYDSKLOG", 64, (Field("uuid", "16s"), Field("segment", "Q"), Field("segment_bytes", "Q"))
)

_Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Tag = Annotated[bytes, Meta(min_length=SALT_TAG_BYTES, max_length=SALT_TAG_BYTES)]
_U16 = Annotated[int, Meta(ge=0, lt=1 << 16)]
_U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
_U63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Record(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    pass


class ShapeRecord(_Record, tag="shape", frozen=True):
    """What later puts mean by `number`. Written before the first of them."""

    number: _U32
    fingerprint: _Digest
    model: Annotated[str, Meta(max_length=MAX_MODEL_BYTES)]
    group: _U32
    tokens: _U32
    part: _U16
    parts: _U16
    areas: Annotated[int, Meta(ge=1, le=MAX_AREAS)]
    area_bytes: Annotated[int, Meta(ge=1, lt=1 << 48)]


class Put(_Record, tag="put", frozen=True):
    """An extent was written, header and payload."""

    shape: _U32
    offset: _U63
    seq: _U63
    key: _Digest
    salt_tag: _Tag


class Drop(_Record, tag="drop", frozen=True):
    """The extent at `offset` is not to be used any more."""

    offset: _U63
    seq: _U63


class Seal(_Record, tag="seal", frozen=True):
    """Nothing more is written to the segment; every extent stands above. Its file was cut to `used_bytes`."""

    used_bytes: _U63


Record = ShapeRecord | Put | Drop | Seal

_decoder = msgspec.msgpack.Decoder(Record)
_encoder = msgspec.msgpack.Encoder()


class LogHeader(NamedTuple):
    """The segment that this is the log of."""

    uuid: bytes
    segment: int
    segment_bytes: int

    def pack(self) -> bytes:
        return LAYOUT.pack(*self)


def parse_log_header(data: bytes | memoryview) -> LogHeader:
    """Raises Damaged or UnknownVersion."""
    return LogHeader(*LAYOUT.unpack(data))


def encode_frame(uuid: bytes, number: int, record: Record) -> bytes:
    """The bytes of the log's `number`-th record, counted from 0."""
    payload = _encoder.encode(record)
    return FRAME.pack(len(payload), number, _frame_checksum(uuid, number, payload)) + payload


def _frame_checksum(uuid: bytes, number: int, payload: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(b"".join((uuid, struct.pack("<II", len(payload), number), payload)))


@dataclass(slots=True)
class ParsedLog:
    """All records up to `end`. Behind it there is nothing, unless `damage` says otherwise."""

    records: list[Record] = field(default_factory=list)
    end: int = LAYOUT.size
    damage: Damaged | None = None


def parse_records(data: bytes | memoryview, uuid: bytes) -> ParsedLog:
    """What stands behind the header. Never raises: a log is good up to its first damage."""
    parsed = ParsedLog()
    try:
        while (frame := _parse_frame(data, parsed.end, len(parsed.records), uuid)) is not None:
            record, parsed.end = frame
            parsed.records.append(record)
        _require_zeros(data, parsed.end)
    except Damaged as damage:
        parsed.damage = damage
    return parsed


def _parse_frame(data: bytes | memoryview, at: int, expected: int, uuid: bytes) -> tuple[Record, int] | None:
    """The record at `at` and where it ends; None at the end of the log."""
    if at + FRAME.size > len(data):
        return None
    length, number, checksum = FRAME.unpack_from(data, at)
    if not length:
        return None
    what = f"record {expected} of the log"
    if length > MAX_PAYLOAD:
        raise Damaged(Damage.VALUE, f"{what} has {length} bytes; there are at most {MAX_PAYLOAD}")
    end = at + FRAME.size + length
    if end > len(data):
        raise Damaged(Damage.TRUNCATED, f"{what} has {len(data) - at} of {FRAME.size + length} bytes")
    payload = data[at + FRAME.size : end]
    if checksum != _frame_checksum(uuid, number, payload):
        raise Damaged(Damage.CHECKSUM, f"{what} does not match its checksum")
    if number != expected:
        raise Damaged(Damage.ORDER, f"record {number} stands where record {expected} belongs")
    try:
        return _decoder.decode(payload), end
    except msgspec.DecodeError as error:
        raise Damaged(Damage.VALUE, f"{what} cannot be understood: {error}") from None


def _require_zeros(data: bytes | memoryview, at: int) -> None:
    rest = bytes(data[at:])
    if rest.count(0) != len(rest):
        raise Damaged(Damage.CHECKSUM, f"the log goes on behind its end at {at}")
