"""Reads every extent of a directory and says of each whether it is what was written. Owns that judgement; changes
nothing.

What should be there is taken from the logs, as a worker's start takes it. A segment without a seal is walked page by
page as well, since its log may not know all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.format.errors import Damaged, FormatError
from blockyard.worker.disk.format.extent_header import MAGIC, parse_extent_header
from blockyard.worker.disk.format.log import Put, parse_log_header, parse_records
from blockyard.worker.disk.format.names import log_name, segment_name
from blockyard.worker.disk.format.values import Extent, Shape
from blockyard.worker.disk.io import DiskFile, error_name, read_full
from blockyard.worker.disk.recovery import FoundSegment, recover
from blockyard.worker.disk.verify import verified, xxh3
from blockyard.worker.fsck.remarks import Remark, remark
from blockyard.worker.fsck.unchanging import UnchangingDirectory

_WINDOW = 1 << 20


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
    """`remarks` are known at once; `segments` reads all bytes as it goes, in the order of numbers."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the directory itself cannot be read."""
        self._directory = UnchangingDirectory(path)
        found = recover(self._directory)
        self._found = sorted(found.segments, key=lambda one: one.header.segment)
        self.remarks: list[Remark] = [remark(self._directory, trouble) for trouble in found.troubles]
        self.total_bytes = sum(one.size for one in self._found)

    def segments(self) -> Iterator[CheckedSegment]:
        """Judge one segment after the other."""
        for found in self._found:
            yield _checked(self._directory, found)


def _checked(directory: UnchangingDirectory, found: FoundSegment) -> CheckedSegment:
    number = found.header.segment
    log_damage = "" if found.sealed else _log_damage(directory, found)
    segment = CheckedSegment(number, found.size, found.sealed, log_damage)
    file = directory.open(segment_name(number), direct=False)
    try:
        # What is in the page cache says nothing about the device.
        file.forget(0, found.size)
        reader = _Reader(file, found)
        segment.judged = [reader.judge(extent) for extent in found.live()]
        if not found.sealed:
            for judged in map(reader.judge, reader.beyond(found.known)):
                if judged.damage and not log_damage:
                    segment.unfinished += 1
                else:
                    segment.judged.append(judged)
    finally:
        file.close()
    segment.judged.sort(key=lambda one: one.extent.offset)
    if log_damage == _NO_LOG and not segment.judged:
        segment.log_damage = ""
    return segment


_NO_LOG = "there is no log"


def _log_damage(directory: UnchangingDirectory, found: FoundSegment) -> str:
    """What is wrong with the log of a segment without a seal; nothing, if only the seal is missing."""
    try:
        data = directory.start_of(log_name(found.header.segment), found.log_size or _WINDOW)
        if not any(data[:PAGE]):
            return _NO_LOG
        parsed = parse_records(data, parse_log_header(data).uuid)
    except FileNotFoundError:
        return _NO_LOG
    except OSError as error:
        return f"the log cannot be read: {error_name(error)}"
    except Damaged as error:
        return str(error)
    if parsed.damage is not None:
        return str(parsed.damage)
    puts = {record.offset for record in parsed.records if isinstance(record, Put)}
    return "" if puts == found.known.keys() else "a record of the log does not follow from those before it"


class _Reader:
    """One open segment, and memory that is used again for each extent."""

    def __init__(self, file: DiskFile, found: FoundSegment) -> None:
        self._file = file
        self._uuid = found.header.uuid
        self._number = found.header.segment
        self._size = found.size
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
            verified(self._page, areas, self._uuid, extent, xxh3)
        except FormatError as error:
            return Judged(extent, str(error))
        except OSError as error:
            return Judged(extent, f"cannot be read: {error_name(error)}", unread=True)
        return Judged(extent)

    def beyond(self, known: Mapping[int, Extent]) -> Iterator[Extent]:
        """Extents by the headers that stand where the log tells of nothing, whole or not."""
        at = PAGE
        for offset, page in self._pages():
            if offset < at:
                continue
            if offset in known:
                at = known[offset].end
            elif (extent := self._extent(page, offset)) is not None:
                at = extent.end
                yield extent

    def _pages(self) -> Iterator[tuple[int, memoryview]]:
        window = aligned(_WINDOW)
        for start in range(0, self._size, _WINDOW):
            try:
                done = read_full(self._file, [window], start)
            except OSError:
                continue
            self._file.forget(start, done)
            for offset in range(0, done // PAGE * PAGE, PAGE):
                yield start + offset, window[offset : offset + PAGE]

    def _extent(self, page: memoryview, offset: int) -> Extent | None:
        if page[: len(MAGIC)] != MAGIC:
            return None
        try:
            header = parse_extent_header(page, self._number)
        except FormatError:
            return None
        extent = header.extent
        fits = header.uuid == self._uuid and extent.offset == offset and extent.end <= self._size
        return extent if fits else None

    def _areas(self, shape: Shape) -> list[memoryview]:
        if len(self._payload) < shape.areas * shape.stride:
            self._payload = aligned(shape.areas * shape.stride)
        return [self._payload[i * shape.stride : (i + 1) * shape.stride] for i in range(shape.areas)]
