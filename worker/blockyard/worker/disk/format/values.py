"""What an extent holds and where it lies. Owns arithmetic on sizes; must never know how anything is encoded.

Imports values alone, so that a core may use these.
"""

from __future__ import annotations

from typing import NamedTuple

from blockyard.common.slot_table import PAGE, align_page

MAX_AREAS = 16
MAX_MODEL_BYTES = 256
SALT_TAG_BYTES = 8
NO_SALT = bytes(SALT_TAG_BYTES)


def fitting_model(name: str) -> str:
    """As much of a model's name as a header holds."""
    return name.replace("\0", "").encode(errors="replace")[:MAX_MODEL_BYTES].decode(errors="ignore")


class Shape(NamedTuple):
    """What all chunks of one KV cache group of one world have in common on this node.

    `areas` ranks with `area_bytes` each are part `part` of `parts` of the chunk; other nodes hold the others.
    """

    fingerprint: bytes
    model: str
    group: int
    tokens: int
    part: int
    parts: int
    areas: int
    area_bytes: int

    @property
    def stride(self) -> int:
        """From one area to the next on disk, as in a slot."""
        return align_page(self.area_bytes)

    @property
    def extent_bytes(self) -> int:
        """Header page and areas."""
        return PAGE + self.areas * self.stride


class Extent(NamedTuple):
    """One chunk's bytes on disk: whose, and where. `seq` grows with each extent of a directory."""

    key: bytes
    salt_tag: bytes
    shape: Shape
    segment: int
    offset: int
    seq: int

    @property
    def end(self) -> int:
        return self.offset + self.shape.extent_bytes
