"""Where copies lie on disk. Owns directories, their segments and copies, and that the bytes add up; decides nothing.

A directory's files are segments, preallocated in one size and cut to what is used when the next one is begun. Copies
are appended to the newest; a segment is given back whole. What is dropped from a segment stays dead weight until then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blockyard.common.identity import Key
from blockyard.worker.core.breaker import Breaker
from blockyard.worker.core.disk.settings import DirectorySettings
from blockyard.worker.disk.format.values import Extent

if TYPE_CHECKING:
    from blockyard.worker.core.slots import SizeClass


@dataclass(slots=True, eq=False)
class DiskCopy:
    """One chunk in one segment. `written` and `hit` are steps: when it came to lie here, and when it was last asked for
    since then (0: never); `failures` counts the reads that the device failed.

    `parent` is the chunk before it in the request that stored it, as far as this life of the worker knows.
    """

    extent: Extent
    parent: Key
    size_class: "SizeClass"
    segment: "Segment"
    written: int
    hit: int = 0
    failures: int = 0

    @property
    def key(self) -> Key:
        return self.extent.key

    @property
    def length(self) -> int:
        return self.extent.shape.extent_bytes

    def asked(self, step: int) -> None:
        """A request last asked for the chunk in this step; what was before the copy says nothing of it."""
        if step <= max(self.written, self.hit) or self.segment.copies.get(self.key) is not self:
            return
        if not self.hit:
            self.segment.valued_bytes += self.length
        self.hit = step


@dataclass(slots=True, eq=False)
class Segment:
    """One file. `seq` is the highest of its extents, so that a segment with a lower one is older; `readers` are
    operations that read it now.
    """

    directory: "Directory"
    number: int
    bytes: int
    """Of its file."""
    copies: dict[Key, DiskCopy] = field(default_factory=dict)
    live_bytes: int = 0
    valued_bytes: int = 0
    """Of the live ones, those of copies that were asked for since they were written."""
    seq: int = 0
    end: int = 0
    """Of the last extent that is known."""
    growing: bool = False
    """Its file has its full size, of which `end` is used."""
    readers: int = 0
    leaving: bool = False
    """It is being given back: nothing is read from it any more but what moves on."""


@dataclass(slots=True, eq=False)
class Directory:
    """One directory on one device. `number` is its place in the settings."""

    number: int
    settings: DirectorySettings
    segments: dict[int, Segment] = field(default_factory=dict)
    breaker: Breaker = field(default_factory=Breaker)
    file_bytes: int = 0
    seq: int = 0
    """The highest of all extents that ever were here."""
    recovered: bool = False
    """Everything found at the start is known; nothing is written before."""
    full_until: float = 0.0
    """There was no room for a copy. Until then, or until a segment is given back, none is tried."""
    reads: int = 0
    writes: int = 0
    """Operations under way, those that hang among them."""
    writing_bytes: int = 0
    moving_bytes: int = 0
    """Of copies that come to lie here by what is under way."""

    def crowded(self, now: float) -> bool:
        """There is no room for one more segment, so one has to go before the newest is full."""
        return now < self.full_until or self.file_bytes + self.settings.segment_bytes > self.settings.capacity_bytes

    @property
    def live_bytes(self) -> int:
        return sum(segment.live_bytes for segment in self.segments.values())

    @property
    def room(self) -> int:
        """Bytes that further copies may take here before a segment is given back."""
        size, newest = self.settings.segment_bytes, self.newest()
        rest = newest.bytes - newest.end if newest is not None and newest.growing else 0
        whole = max(0, self.settings.capacity_bytes - self.file_bytes) // size * size
        return rest + whole - self.writing_bytes - self.moving_bytes

    def newest(self) -> Segment | None:
        """The segment that was written to last."""
        return self.segments[max(self.segments)] if self.segments else None


class Directories:
    """All directories, in the order of the settings. A chunk has at most one copy over all of them."""

    def __init__(self, settings: tuple[DirectorySettings, ...]) -> None:
        self.all = [Directory(number, one) for number, one in enumerate(settings)]

    def add(self, directory: Directory, extent: Extent, parent: Key, size_class: "SizeClass", step: int) -> DiskCopy:
        """A copy lies there. Precondition: its class has none of this key."""
        segment = self.placed(directory, extent)
        copy = DiskCopy(extent, parent, size_class, segment, step)
        segment.copies[extent.key] = copy
        segment.live_bytes += copy.length
        size_class.on_disk[extent.key] = copy
        return copy

    def placed(self, directory: Directory, extent: Extent) -> Segment:
        """There is an extent, of use or not. The first one of a segment means that the one before it is cut."""
        segment = directory.segments.get(extent.segment)
        if segment is None:
            newest = directory.newest()
            segment = self.found(directory, extent.segment, directory.settings.segment_bytes)
            segment.growing = True
            if newest is not None and newest.growing:
                newest.growing = False
                self._resize(newest, newest.end)
        segment.end = max(segment.end, extent.end)
        segment.seq = max(segment.seq, extent.seq)
        directory.seq = max(directory.seq, extent.seq)
        if segment.end > segment.bytes:
            self._resize(segment, segment.end)
        return segment

    def found(self, directory: Directory, number: int, size: int) -> Segment:
        """There is a segment of this number with a file of this size, whatever is in it."""
        segment = directory.segments.setdefault(number, Segment(directory, number, 0))
        self._resize(segment, size)
        return segment

    def remove(self, copy: DiskCopy) -> None:
        """The copy is of no use any more; its bytes come back with its segment."""
        segment = copy.segment
        del segment.copies[copy.key], copy.size_class.on_disk[copy.key]
        segment.live_bytes -= copy.length
        if copy.hit:
            segment.valued_bytes -= copy.length

    def move(self, copy: DiskCopy, extent: Extent, step: int) -> None:
        """The same chunk lies elsewhere now. Its hits are spent: it has to earn the next move anew."""
        self.remove(copy)
        self.add(copy.segment.directory, extent, copy.parent, copy.size_class, step)

    def forget(self, segment: Segment) -> None:
        """The segment's file is gone. Precondition: nothing reads it, and no copy is in it."""
        del segment.directory.segments[segment.number]
        segment.directory.file_bytes -= segment.bytes

    def copies(self) -> Iterator[DiskCopy]:
        """All of them."""
        for directory in self.all:
            for segment in directory.segments.values():
                yield from segment.copies.values()

    @staticmethod
    def _resize(segment: Segment, size: int) -> None:
        segment.directory.file_bytes += size - segment.bytes
        segment.bytes = size
