"""Files that are not used as segments, and why. Owns the kinds; reads headers, never extents."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format.errors import FormatError, UnknownVersion
from blockyard.worker.disk.format.log import LAYOUT, parse_log_header
from blockyard.worker.disk.format.names import log_name, segment_name, segment_of
from blockyard.worker.disk.format.segment_header import parse_segment_header
from blockyard.worker.disk.recovery import Trouble
from blockyard.worker.fsck.unchanging import UnchangingDirectory


class Kind(StrEnum):
    """What is the matter with a file."""

    DAMAGED = "damaged"
    """It was a segment; the next start removes it."""
    UNREADABLE = "unreadable"
    """The device does not give it."""
    FOREIGN = "foreign"
    """Undamaged, of another version: left alone, by everybody."""
    LEFTOVER = "leftover"
    """Half made when a worker died; the next start removes it, and nothing is lost by that."""

    @property
    def is_damage(self) -> bool:
        return self in (Kind.DAMAGED, Kind.UNREADABLE)


class Remark(NamedTuple):
    """One file."""

    name: str
    kind: Kind
    detail: str


def remark(directory: UnchangingDirectory, trouble: Trouble) -> Remark:
    """What a start would find wrong, with the reason to act on."""
    return Remark(trouble.name, _kind(directory, trouble.name), trouble.detail)


def _kind(directory: UnchangingDirectory, name: str) -> Kind:
    number = segment_of(name)
    if number is None or _is_half_made(directory, number):
        return Kind.LEFTOVER
    if name in directory.unwanted:
        return Kind.DAMAGED
    return Kind.FOREIGN if _is_foreign(directory, number) else Kind.UNREADABLE


def _is_half_made(directory: UnchangingDirectory, number: int) -> bool:
    """A header is written before there is a log, and a log before there is any extent."""
    if (directory.path / log_name(number)).exists():
        return False
    try:
        return not any(directory.start_of(segment_name(number), PAGE))
    except OSError:
        return False


def _is_foreign(directory: UnchangingDirectory, number: int) -> bool:
    parsers: tuple[tuple[str, int, Callable[[memoryview], object]], ...] = (
        (segment_name(number), PAGE, parse_segment_header),
        (log_name(number), LAYOUT.size, parse_log_header),
    )
    for name, size, parse in parsers:
        try:
            parse(directory.start_of(name, size))
        except UnknownVersion:
            return True
        except (FormatError, OSError):
            continue
    return False
