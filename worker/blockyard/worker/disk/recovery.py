"""What a directory holds when a worker starts, from its files' names, headers and logs. Owns that judgement.

It removes what cannot be of use to anybody (half-made files, logs without segments, segments without a usable header)
and touches nothing that another version wrote. One file that cannot be read costs that file, not the start.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.format.errors import Damage, Damaged, FormatError, UnknownVersion
from blockyard.worker.disk.format.log import (
    Drop,
    LogHeader,
    ParsedLog,
    Put,
    Seal,
    ShapeRecord,
    parse_log_header,
    parse_records,
)
from blockyard.worker.disk.format.names import is_temporary, log_name, log_of, segment_name, segment_of
from blockyard.worker.disk.format.segment_header import SegmentHeader, parse_segment_header
from blockyard.worker.disk.format.values import Extent, Shape
from blockyard.worker.disk.io import DiskDirectory, Listing, error_words, read_full

NO_LOG = "there is no log"


class Kind(StrEnum):
    """What is the matter with a file that is not used."""

    DAMAGED = "damaged"
    """It was a segment. It is removed."""
    UNREADABLE = "unreadable"
    """The device does not give it now."""
    FOREIGN = "foreign"
    """Undamaged, of another version: left alone, by everybody."""
    LEFTOVER = "leftover"
    """Half made when a worker died. It is removed, and nothing is lost by that."""


class Trouble(NamedTuple):
    """A file that is not used. `left` ones still take their bytes; the others were removed."""

    name: str
    left: bool
    detail: str
    kind: Kind


@dataclass(slots=True)
class FoundSegment:
    """One that can be used. Unless `sealed`, it has to be scanned; `log_end` is then of no use.

    `log_damage` says why the log is not to be trusted; one that only lacks its seal is.
    """

    header: SegmentHeader
    size: int
    known: dict[int, Extent] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    sealed: bool = False
    used_bytes: int = 0
    log_size: int = 0
    log_end: int = 0
    log_count: int = 0
    log_damage: str = NO_LOG

    def live(self) -> list[Extent]:
        """What its log says can be read."""
        return [extent for offset, extent in self.known.items() if offset not in self.dropped]


@dataclass
class Recovery:
    """All of a directory. `unread` segments, each with its file's size, may be given another time; `next_segment` is a
    number that no file has.
    """

    segments: list[FoundSegment] = field(default_factory=list)
    unread: dict[int, int] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    next_segment: int = 0


def recover(directory: DiskDirectory) -> Recovery:
    """Read names, headers and logs. Raises OSError only where the directory itself cannot be read."""
    listing, found = directory.entries(), Recovery()
    interned: dict[Shape, Shape] = {}
    sizes = {entry.name: entry.size for entry in listing.entries}
    for name in sizes:
        number = segment_of(name)
        if number is not None:
            found.next_segment = max(found.next_segment, number + 1)
            _take(directory, number, sizes, found, interned)
    _remove_remains(directory, listing, found)
    return found


def read_again(directory: DiskDirectory, number: int) -> Recovery:
    """One segment that was unread. Raises OSError if it still is."""
    sizes = {entry.name: entry.size for entry in directory.entries().entries}
    found = Recovery()
    if segment_name(number) in sizes:
        _take(directory, number, sizes, found, {})
    if found.unread:
        raise OSError(errno.EIO, found.troubles[0].detail)
    return found


def _take(
    directory: DiskDirectory, number: int, sizes: dict[str, int], found: Recovery, interned: dict[Shape, Shape]
) -> None:
    name, page = segment_name(number), memoryview(b"")
    try:
        page = _read(directory, name, PAGE)
        header = parse_segment_header(page)
        if header.segment != number:
            raise Damaged(Damage.IDENTITY, f"{name} says that it is segment {header.segment}")
        segment = FoundSegment(header, sizes[name])
        _read_log(directory, segment, sizes.get(log_name(number), 0), interned)
        found.segments.append(segment)
    except UnknownVersion as error:
        found.troubles.append(Trouble(name, True, f"{name}: {error}", Kind.FOREIGN))
    except FormatError as error:
        # A header is written before there is a log, and a log before there is any extent.
        half_made = log_name(number) not in sizes and not any(page)
        kind = Kind.LEFTOVER if half_made else Kind.DAMAGED
        found.troubles.append(Trouble(name, not _remove(directory, name), str(error), kind))
    except OSError as error:
        found.unread[number] = sizes[name]
        found.troubles.append(Trouble(name, True, f"{name} cannot be read: {error_words(error)}", Kind.UNREADABLE))


def _read_log(directory: DiskDirectory, segment: FoundSegment, size: int, interned: dict[Shape, Shape]) -> None:
    """Fill in what the segment's log tells, as far as it can be read."""
    name = log_name(segment.header.segment)
    try:
        data = _read(directory, name, size) if size else memoryview(b"")
        if not any(data[:PAGE]):
            return
        header = parse_log_header(data)
    except OSError as error:
        segment.log_damage = f"the log cannot be read: {error_words(error)}"
        return
    except Damaged as error:
        segment.log_damage = str(error)
        return
    right = LogHeader(segment.header.uuid, segment.header.segment, segment.header.segment_bytes)
    if header != right:
        raise Damaged(Damage.IDENTITY, f"{name} is the log of another segment than {segment_name(right.segment)}")
    parsed = parse_records(data, header.uuid)
    follows = _apply(segment, parsed, interned)
    segment.log_damage = "" if follows else "a record of the log does not follow from those before it"
    if parsed.damage is not None:
        segment.log_damage = str(parsed.damage)
    segment.sealed = segment.sealed and not segment.log_damage
    segment.log_size, segment.log_end, segment.log_count = size, parsed.end, len(parsed.records)


def _apply(segment: FoundSegment, parsed: ParsedLog, interned: dict[Shape, Shape]) -> bool:
    """Follow the records; False when one does not follow from those before it, and the rest is not looked at."""
    number, shapes = segment.header.segment, list[Shape]()
    for record in parsed.records:
        if isinstance(record, Put):
            if record.shape >= len(shapes):
                return False
            shape = shapes[record.shape]
            segment.known[record.offset] = Extent(record.key, record.salt_tag, shape, number, record.offset, record.seq)
        elif isinstance(record, Drop):
            segment.dropped.add(record.offset)
        elif isinstance(record, ShapeRecord):
            shape = Shape(*(getattr(record, name) for name in Shape._fields))
            shapes.append(interned.setdefault(shape, shape))
        elif isinstance(record, Seal):
            segment.sealed, segment.used_bytes = True, record.used_bytes
    return True


def _remove_remains(directory: DiskDirectory, listing: Listing, found: Recovery) -> None:
    """Half-made files, and logs whose segment is gone."""
    names = {entry.name for entry in listing.entries}
    removed = {trouble.name for trouble in found.troubles if not trouble.left}
    for name in sorted(names):
        number = log_of(name)
        orphan = number is not None and (segment_name(number) not in names - removed)
        if orphan or is_temporary(name):
            detail = f"{name} has no segment" if orphan else f"{name} was not finished"
            found.troubles.append(Trouble(name, not _remove(directory, name), detail, Kind.LEFTOVER))


def _remove(directory: DiskDirectory, name: str) -> bool:
    try:
        directory.unlink(name)
    except OSError:
        return False
    return True


def _read(directory: DiskDirectory, name: str, size: int) -> memoryview:
    file = directory.open(name, direct=False)
    try:
        memory = aligned(max(PAGE, size))
        done = read_full(file, [memory[:size]], 0)
        file.forget(0, size)
        return memory[:done]
    finally:
        file.close()
