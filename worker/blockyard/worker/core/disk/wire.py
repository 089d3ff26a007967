"""What the disk tier says to its shell, and what it hears. Owns the vocabulary; must never know files.

Every instruction with an `op` is answered by exactly one event with that number, however late.
"""

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from blockyard.worker.core.slots import SizeClass

Failure = Literal["full", "io", "corrupt", "gone", "busy"]
"""No room in the directory; the device failed; wrong bytes; not there (any more); the shell has too much to do."""

Shapes = tuple[tuple[int, int, int], ...]


class _Struct(msgspec.Struct, frozen=True):
    pass


class DiskWorld(_Struct):
    """A fingerprint's geometry, as it has to be known when its engines are not there. See worlds.World."""

    fingerprint: bytes
    model: str
    areas: int
    shapes: Shapes


class Extent(_Struct):
    """What a copy is of: all that a reader must find in it, and that makes it useful after a restart."""

    key: bytes
    parent: bytes
    world: DiskWorld
    group: int
    areas: int
    area_bytes: int


class Place(_Struct):
    """Where a copy lies: `length` bytes from `offset` of a segment of a directory."""

    directory: int
    segment: int
    offset: int
    length: int


# -- instructions ---------------------------------------------------------------------------------------


class WriteExtent(_Struct):
    """Append a slot's areas with the checksums that stand in the slot table. -> DiskWritten | DiskFailed

    Area i is `extent.area_bytes` at `offset + i * area_stride` of the pool.
    """

    op: int
    directory: int
    extent: Extent
    slot: int
    generation: int
    offset: int
    area_stride: int


class ReadExtent(_Struct):
    """Read a copy into a slot, and verify all of it. -> DiskRead | DiskFailed"""

    op: int
    place: Place
    extent: Extent
    slot: int
    generation: int
    offset: int
    area_stride: int


class MoveExtent(_Struct):
    """Read a copy, verify it, and append it to the newest segment. -> DiskWritten | DiskFailed"""

    op: int
    place: Place
    extent: Extent


class DropExtent(_Struct):
    """The copy must not be found at the next start. No answer."""

    place: Place
    key: bytes


class DropWorld(_Struct):
    """No copy of this world that was written so far must be found at the next start. No answer."""

    directory: int
    fingerprint: bytes


class ReclaimSegment(_Struct):
    """Give a segment's file back. -> DiskReclaimed | DiskFailed"""

    op: int
    directory: int
    segment: int


class ProbeDirectory(_Struct):
    """Try whether the device writes and reads again. -> DiskProbed | DiskFailed"""

    op: int
    directory: int


DiskInstruction = WriteExtent | ReadExtent | MoveExtent | DropExtent | DropWorld | ReclaimSegment | ProbeDirectory

# -- events ---------------------------------------------------------------------------------------------


class DiskWritten(_Struct):
    """The copy lies there. It is durable as far as the shell syncs."""

    op: int
    place: Place


class DiskRead(_Struct):
    """The slot holds the copy, verified; one xxh3-64 per area."""

    op: int
    checksums: tuple[int, ...]


class DiskFailed(_Struct):
    """It did not come to pass, and nothing touches the slot any more."""

    op: int
    reason: Failure
    detail: str


class DiskReclaimed(_Struct):
    """The segment's file is gone."""

    op: int


class DiskProbed(_Struct):
    """The device works."""

    op: int


class FoundCopy(_Struct):
    """A copy found at the start; `world` counts in DiskFound.worlds."""

    key: bytes
    parent: bytes
    world: int
    group: int
    place: Place


class DiskFound(_Struct):
    """Some of what a directory holds at the start, oldest first; `last` with the last of it.

    `empty` are segments in which nothing of use was found: they take room all the same.
    """

    directory: int
    worlds: list[DiskWorld]
    copies: list[FoundCopy]
    empty: list[int]
    last: bool


DiskEvent = DiskWritten | DiskRead | DiskFailed | DiskReclaimed | DiskProbed | DiskFound


def extent_of(key: bytes, parent: bytes, size_class: "SizeClass") -> Extent:
    return Extent(key, parent, size_class.disk_world, size_class.group, size_class.areas, size_class.area_bytes)
