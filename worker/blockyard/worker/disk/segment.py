"""One segment as the store knows it. Owns who uses it now and what is left of it; does no I/O of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.io import DiskFile
from blockyard.worker.disk.segment_log import SegmentLog


class SegmentInfo(NamedTuple):
    """A segment for those who decide. `scanned`: nothing more will be found in it."""

    number: int
    bytes: int
    extents: int
    growing: bool
    scanned: bool


@dataclass(eq=False)
class Segment:
    """`size` is the file's length, `preallocated` what it was made with, `extents` how many can be read. Counts are
    guarded by the store's lock, the log by `log_lock`.

    States: growing (`file` is open) → sealed; or found and not scanned yet (`known` is set) → sealed. Any of them may
    be retired: nobody begins to use it any more.
    """

    number: int
    uuid: bytes
    size: int
    preallocated: int
    log: SegmentLog | None
    file: DiskFile | None = None
    end: int = PAGE
    extents: int = 0
    sealed: bool = False
    retired: bool = False
    readers: int = 0
    writers: int = 0
    known: dict[int, Extent] | None = None
    """Of one that is not scanned yet: by offset, what its log tells was put."""
    dropped: set[int] = field(default_factory=set)
    """Of one that is not scanned yet: offsets that were dropped."""
    log_lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def unread(cls, number: int, size: int) -> Segment:
        """One whose files the device does not give now. It takes its room, and a scan tries again."""
        return cls(number, b"", size, size, None, known={})

    @property
    def is_unread(self) -> bool:
        return not self.uuid

    @property
    def busy(self) -> bool:
        return bool(self.readers or self.writers)

    def fits(self, size: int) -> bool:
        """Whether one more extent can be written here."""
        assert self.log is not None
        return self.end + size <= self.size and self.log.has_room(self.extents, self.writers + 1)

    def take(self, size: int) -> int:
        """Set room aside for a writer; its offset."""
        offset = self.end
        self.end += size
        self.writers += 1
        return offset

    def give_back(self, extent: Extent) -> None:
        """Its write failed: its place can be used again, unless something was placed behind it."""
        if self.end == extent.end:
            self.end = extent.offset
