"""Where copies lie on disk. Owns directories, their segments and copies, and that the bytes add up; decides nothing.

A directory's files are segments of one size. Copies are appended to the newest; a segment is given back whole. What
is dropped from a segment stays dead weight until then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blockyard.common.identity import Key
from blockyard.worker.core.disk.breaker import Breaker
from blockyard.worker.core.disk.settings import DirectorySettings
from blockyard.worker.disk.format.values import Extent

if TYPE_CHECKING:
    from blockyard.worker.core.slots import SizeClass


@dataclass(slots=True, eq=False)
class DiskCopy:
    """One chunk in one segment. `hits` counts the times it was read back, `failures` those that the device failed it.

    `parent` is the chunk before it in the request that stored it, as far as this life of the worker knows.
    """

    extent: Extent
    parent: Key
    size_class: "SizeClass"
    segment: "Segment"
    hits: int = 0
    failures: int = 0

    @property
    def key(self) -> Key:
        return self.extent.key

    @property
    def length(self) -> int:
        return self.extent.shape.extent_bytes


@dataclass(slots=True, eq=False)
class Segment:
    """One file. `readers` are operations that read it now, `used` the step in which it last was of use."""

    directory: "Directory"
    number: int
    copies: dict[Key, DiskCopy] = field(default_factory=dict)
    live_bytes: int = 0
    readers: int = 0
    used: int = 0
    leaving: bool = False
    """It is being given back: nothing is read from it any more but what moves on."""


@dataclass(slots=True, eq=False)
class Directory:
    """One directory on one device. `number` is its place in the settings."""

    number: int
    settings: DirectorySettings
    segments: dict[int, Segment] = field(default_factory=dict)
    breaker: Breaker = field(default_factory=Breaker)
    recovered: bool = False
    """Everything found at the start is known; nothing is written before."""
    full_until: float = 0.0
    """There was no room for a copy. Until then, or until a segment is given back, none is tried."""
    reads: int = 0
    writes: int = 0
    """Operations under way, those that hang among them."""

    def crowded(self, now: float) -> bool:
        """Every segment that fits is there, so one has to go before the newest is full."""
        return now < self.full_until or len(self.segments) >= self.settings.segments

    @property
    def live_bytes(self) -> int:
        return sum(segment.live_bytes for segment in self.segments.values())

    @property
    def file_bytes(self) -> int:
        return len(self.segments) * self.settings.segment_bytes

    def newest(self) -> Segment | None:
        """The segment that was written to last."""
        return self.segments[max(self.segments)] if self.segments else None


class Directories:
    """All directories, in the order of the settings. A chunk has at most one copy over all of them."""

    def __init__(self, settings: tuple[DirectorySettings, ...]) -> None:
        self.all = [Directory(number, one) for number, one in enumerate(settings)]

    def add(self, directory: Directory, extent: Extent, parent: Key, size_class: "SizeClass", step: int) -> DiskCopy:
        """A copy lies there. Precondition: its class has none of this key."""
        segment = self.occupy(directory, extent.segment)
        copy = DiskCopy(extent, parent, size_class, segment)
        segment.copies[extent.key] = copy
        segment.live_bytes += copy.length
        segment.used = step
        size_class.on_disk[extent.key] = copy
        return copy

    def occupy(self, directory: Directory, number: int) -> Segment:
        """There is a segment of this number, whatever is in it."""
        return directory.segments.setdefault(number, Segment(directory, number))

    def remove(self, copy: DiskCopy) -> None:
        """The copy is of no use any more; its bytes come back with its segment."""
        segment = copy.segment
        del segment.copies[copy.key], copy.size_class.on_disk[copy.key]
        segment.live_bytes -= copy.length

    def move(self, copy: DiskCopy, extent: Extent, step: int) -> DiskCopy:
        """The same chunk lies elsewhere now. Its hits are spent: it has to earn the next move anew."""
        self.remove(copy)
        return self.add(copy.segment.directory, extent, copy.parent, copy.size_class, step)

    def forget(self, segment: Segment) -> None:
        """The segment's file is gone. Precondition: nothing reads it, and no copy is in it."""
        del segment.directory.segments[segment.number]

    def copies(self) -> Iterator[DiskCopy]:
        """All of them."""
        for directory in self.all:
            for segment in directory.segments.values():
                yield from segment.copies.values()
