"""Whether bytes that were read are the ones that were looked for. Owns that judgement; reads nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from blockyard.worker.disk.format.errors import Damage, Damaged
from blockyard.worker.disk.format.extent_header import ExtentHeader, parse_extent_header, require_same
from blockyard.worker.disk.format.values import MAX_AREAS, MAX_MODEL_BYTES, Extent, Shape, fitting_model

Checksum = Callable[[memoryview], int]

xxh3: Checksum = xxhash.xxh3_64_intdigest


def verified(
    page: memoryview, areas: Sequence[memoryview], uuid: bytes, wanted: Extent, checksum: Checksum
) -> ExtentHeader:
    """The header, if header and areas are those of `wanted`; else raises Damaged or UnknownVersion."""
    header = parse_extent_header(page, wanted.segment)
    require_same(header, uuid, wanted)
    require_payload(header, areas, checksum)
    return header


def require_payload(header: ExtentHeader, areas: Sequence[memoryview], checksum: Checksum) -> None:
    """Refuse areas that the header does not tell of."""
    size = header.extent.shape.area_bytes
    for number, (area, right) in enumerate(zip(areas, header.checksums, strict=True)):
        found = checksum(area[:size])
        if found != right:
            raise Damaged(Damage.PAYLOAD, f"area {number} has checksum {found:016x}, its header says {right:016x}")


def check_areas(shape: Shape, areas: Sequence[memoryview]) -> None:
    """Refuse buffers that do not fit the shape: a wrong length must not become a write into somebody else's slot."""
    sizes = [area.nbytes for area in areas]
    if sizes != [shape.stride] * shape.areas:
        raise ValueError(f"areas have {sizes} bytes, must be {shape.areas} of {shape.stride}")


def check_header(shape: Shape, checksums: Sequence[int]) -> None:
    """Refuse what a header cannot tell."""
    if len(checksums) != shape.areas or not 1 <= shape.areas <= MAX_AREAS:
        raise ValueError(
            f"there are {len(checksums)} checksums for {shape.areas} areas, of which there are 1 to {MAX_AREAS}"
        )
    if shape.model != fitting_model(shape.model):
        raise ValueError(f"model has {len(shape.model.encode())} bytes, at most {MAX_MODEL_BYTES} fit and none is zero")
    if not 0 <= shape.part < shape.parts:
        raise ValueError(f"part is {shape.part}, must be below {shape.parts}")
