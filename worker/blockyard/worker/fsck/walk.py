"""Reads every extent of a directory and says of each whether it is what was written. Owns that judgement; changes
nothing.

What should be there is taken from the logs, as a worker's start takes it. A segment without a seal is walked page by
page as well, since its log may not know all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.format.errors import FormatError
from blockyard.worker.disk.format.names import segment_name
from blockyard.worker.disk.format.values import Extent, Shape
from blockyard.worker.disk.io import DiskFile, error_name, read_full
from blockyard.worker.disk.recovery import NO_LOG, FoundSegment, recover
from blockyard.worker.disk.scan import headers
from blockyard.worker.disk.unchanging import UnchangingDirectory
from blockyard.worker.disk.verify import verified, xxh3


class Judged(NamedTuple):
    """An extent that should be there, and what is wrong with it, or nothing. `unread`: the device did not give it."""

    extent: Extent
    damage: str = ""
    unread: bool = False


@dataclass
class CheckedSegment:
    """`unfinished` writes were begun and never acknowledged. `log_damage`: why the log is not to be trusted."""

    number: int
    size: int
    sealed: bool
    log_damage: str = ""
    judged: list[Judged] = field(default_factory=list)
    unfinished: int = 0

    @property
    def damaged(self) -> list[Judged]:
        return [one for one in self.judged if one.damage]


class Walk:
    """`troubles` are known at once; `segments` reads all bytes as it goes, in the order of numbers."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the directory itself cannot be read."""
        self._directory = UnchangingDirectory(path)
        found = recover(self._directory)
        self._found = sorted(found.segments, key=lambda one: one.header.segment)
        self.troubles = found.troubles
        self.total_bytes = sum(one.size for one in self._found)

    def segments(self) -> Iterator[CheckedSegment]:
        """Judge one segment after the other."""
        for found in self._found:
            yield _checked(self._directory, found)


def _checked(directory: UnchangingDirectory, found: FoundSegment) -> CheckedSegment:
    number = found.header.segment
    segment = CheckedSegment(number, found.size, found.sealed, found.log_damage)
    file = directory.open(segment_name(number), direct=False)
    try:
        # What is in the page cache says nothing about the device.
        file.forget(0, found.size)
        reader = _Reader(file, found)
        segment.judged = [reader.judge(extent) for extent in found.live()]
        if not found.sealed:
            for judged in map(reader.judge, reader.beyond()):
                if judged.damage and not found.log_damage:
                    segment.unfinished += 1
                else:
                    segment.judged.append(judged)
    finally:
        file.close()
    segment.judged.sort(key=lambda one: one.extent.offset)
    if found.log_damage == NO_LOG and not segment.judged:
        segment.log_damage = ""
    return segment


class _Reader:
    """One open segment, and memory that is used again for each extent."""

    def __init__(self, file: DiskFile, found: FoundSegment) -> None:
        self._file = file
        self._found = found
        self._page = aligned(PAGE)
        self._payload = aligned(PAGE)

    def judge(self, extent: Extent) -> Judged:
        """Read it all and compare: the header with what was looked for, the areas with their checksums."""
        areas, size = self._areas(extent.shape), extent.shape.extent_bytes
        try:
            done = read_full(self._file, [self._page, *areas], extent.offset)
            self._file.forget(extent.offset, done)
            if done < size:
                return Judged(extent, f"extent has {done} of {size} bytes")
            verified(self._page, areas, self._found.header.uuid, extent, xxh3)
        except FormatError as error:
            return Judged(extent, str(error))
        except OSError as error:
            return Judged(extent, f"cannot be read: {error_name(error)}", unread=True)
        return Judged(extent)

    def beyond(self) -> Iterator[Extent]:
        """Extents by the headers that stand where the log tells of nothing, whole or not."""
        header, found = self._found.header, self._found
        place = (self._file, found.size, header.segment, header.uuid, found.known)
        return (one.extent for one in headers(*place, over_unreadable=True))

    def _areas(self, shape: Shape) -> list[memoryview]:
        if len(self._payload) < shape.areas * shape.stride:
            self._payload = aligned(shape.areas * shape.stride)
        return [self._payload[i * shape.stride : (i + 1) * shape.stride] for i in range(shape.areas)]
