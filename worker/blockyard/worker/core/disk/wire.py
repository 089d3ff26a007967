"""What the disk tier says to its shell, and what it hears. Owns the vocabulary; must never know files.

Every instruction with an `op` is answered by exactly one event with that number, however late.
"""

from typing import Literal

import msgspec

from blockyard.worker.disk.format.values import Extent, Shape

Failure = Literal["full", "io", "corrupt", "gone", "busy"]
"""No room in the directory; the device failed; wrong bytes; not there (any more); the shell has too much to do."""


class _Struct(msgspec.Struct, frozen=True):
    pass


# -- instructions ---------------------------------------------------------------------------------------


class WriteExtent(_Struct):
    """Append a slot's areas, with the checksums that stand in the slot table. -> DiskWritten | DiskFailed

    Area i is `shape.area_bytes` at `offset + i * shape.stride` of the pool.
    """

    op: int
    directory: int
    key: bytes
    shape: Shape
    slot: int
    generation: int
    offset: int


class ReadExtent(_Struct):
    """Read a copy into a slot, and verify all of it. -> DiskRead | DiskFailed"""

    op: int
    directory: int
    extent: Extent
    slot: int
    generation: int
    offset: int


class MoveExtent(_Struct):
    """Read a copy, verify it, and append it to the newest segment. -> DiskWritten | DiskFailed"""

    op: int
    directory: int
    extent: Extent


class DropExtents(_Struct):
    """These copies must not be found at the next start. No answer."""

    directory: int
    extents: list[Extent]


class ReclaimSegment(_Struct):
    """Give a segment's file back. -> DiskReclaimed | DiskFailed"""

    op: int
    directory: int
    segment: int


class ProbeDirectory(_Struct):
    """Try whether the device writes and reads again. -> DiskProbed | DiskFailed"""

    op: int
    directory: int


DiskInstruction = WriteExtent | ReadExtent | MoveExtent | DropExtents | ReclaimSegment | ProbeDirectory

# -- events ---------------------------------------------------------------------------------------------


class DiskWritten(_Struct):
    """The copy lies there, and a kill cannot lose it."""

    op: int
    extent: Extent


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


class DiskFound(_Struct):
    """Some of what a directory holds at the start; `last` with the last of it.

    `segments` are numbers and bytes of all that the extents lie in, and of those in which nothing of use was found:
    they take room too. One that was scanned is told again, as it was cut.
    """

    directory: int
    extents: list[Extent]
    segments: list[tuple[int, int]]
    last: bool


DiskEvent = DiskWritten | DiskRead | DiskFailed | DiskReclaimed | DiskProbed | DiskFound
