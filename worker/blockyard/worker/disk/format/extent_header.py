"""The page before an extent's payload: whose bytes these are, and where they belong. Owns its fields.

It names its own place, so a write that landed elsewhere is not taken for what should be there.
"""

from __future__ import annotations

from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format.errors import Damage, Damaged
from blockyard.worker.disk.format.layout import Field, Layout
from blockyard.worker.disk.format.values import MAX_AREAS, MAX_MODEL_BYTES, Extent, Shape

LAYOUT = Layout(
    "extent header",
    b"BYEXTENT",
    PAGE,
    (
        Field("uuid", "16s"),
        Field("offset", "Q"),
        Field("seq", "Q"),
        Field("extent_bytes", "Q"),
        Field("key", "32s"),
        Field("fingerprint", "32s"),
        Field("salt_tag", "8s"),
        Field("group", "I"),
        Field("tokens", "I"),
        Field("part", "H"),
        Field("parts", "H"),
        Field("areas", "I"),
        Field("area_bytes", "Q"),
        Field("area_checksums", f"{MAX_AREAS}Q"),
        Field("model", f"{MAX_MODEL_BYTES}s"),
    ),
)

MAGIC = LAYOUT.magic


class ExtentHeader(NamedTuple):
    """`uuid` is the segment's; `checksums` are xxh3-64 of each area's first `area_bytes` bytes."""

    uuid: bytes
    extent: Extent
    checksums: tuple[int, ...]

    def pack(self) -> bytes:
        extent, shape = self.extent, self.extent.shape
        sums = (*self.checksums, *[0] * (MAX_AREAS - len(self.checksums)))
        return LAYOUT.pack(
            *(self.uuid, extent.offset, extent.seq, shape.extent_bytes, extent.key, shape.fingerprint),
            *(extent.salt_tag, shape.group, shape.tokens, shape.part, shape.parts, shape.areas, shape.area_bytes),
            *sums,
            shape.model.encode(),
        )


def parse_extent_header(data: bytes | memoryview, segment: int) -> ExtentHeader:
    """`segment` is the number of the segment that it was read from. Raises Damaged or UnknownVersion."""
    values = LAYOUT.unpack(data)
    uuid, offset, seq, extent_bytes, key, fingerprint, salt_tag, group, tokens, part, parts, areas, area_bytes = values[
        :13
    ]
    sums, model = values[13:-1], values[-1]
    require = LAYOUT.require
    require(1 <= areas <= MAX_AREAS, "areas", areas)
    require(part < parts, "part", f"{part} of {parts}")
    require(area_bytes >= 1, "area_bytes", area_bytes)
    require(offset % PAGE == 0 and offset >= PAGE, "offset", offset)
    shape = Shape(fingerprint, _text(model), group, tokens, part, parts, areas, area_bytes)
    require(extent_bytes == shape.extent_bytes, "extent_bytes", extent_bytes)
    require(not any(sums[areas:]), "area_checksums", "set beyond the last area")
    return ExtentHeader(uuid, Extent(key, salt_tag, shape, segment, offset, seq), tuple(sums[:areas]))


def _text(padded: bytes) -> str:
    try:
        return padded.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise Damaged(Damage.VALUE, "model of extent header is no UTF-8, which nobody writes") from None


def require_same(header: ExtentHeader, uuid: bytes, wanted: Extent) -> None:
    """Refuse a header, undamaged as it may be, of anything else than `wanted` in this segment."""
    pairs = (("segment", header.uuid, uuid), *zip(Extent._fields, header.extent, wanted, strict=True))
    for name, found, right in pairs:
        if found != right:
            raise Damaged(Damage.IDENTITY, f"{name} of the extent is {_shown(found)}, looked for {_shown(right)}")


def _shown(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
