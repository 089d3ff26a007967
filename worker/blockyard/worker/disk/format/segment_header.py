"""First page of a segment: which one it is. Owns its fields.

The uuid is drawn anew for each segment, so a file that was put back from elsewhere, or from before its number was
used again, is not taken for the one that should be there.
"""

from __future__ import annotations

from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format.layout import Field, Layout

UUID_BYTES = 16

LAYOUT = Layout(
    "segment header",
    b"BYSEGMNT",
    PAGE,
    (Field("uuid", "16s"), Field("segment", "Q"), Field("segment_bytes", "Q"), Field("created_ns", "Q")),
)


class SegmentHeader(NamedTuple):
    """`segment_bytes` is the preallocated size, header page included; `created_ns` is unix time."""

    uuid: bytes
    segment: int
    segment_bytes: int
    created_ns: int

    def pack(self) -> bytes:
        return LAYOUT.pack(*self)


def parse_segment_header(data: bytes | memoryview) -> SegmentHeader:
    """Raises Damaged or UnknownVersion."""
    header = SegmentHeader(*LAYOUT.unpack(data))
    LAYOUT.require(
        header.segment_bytes >= 2 * PAGE and header.segment_bytes % PAGE == 0, "segment_bytes", header.segment_bytes
    )
    return header
