"""Bytes that a directory takes, against its cap and the file system's floor. Owns the sum; must never know files.

What is counted is what `du` counts: allocated blocks of every file, ours or not, and of the directory itself.
"""

from __future__ import annotations

import threading

from blockyard.worker.disk.errors import NoRoom
from blockyard.worker.disk.io import Listing, Space
from blockyard.worker.disk.settings import StoreSettings


class Budget:
    """Allocation by file name."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._files: dict[str, int] = {}
        self._own = 0
        self._used = 0
        self._changes = 0
        self._lock = threading.Lock()

    @property
    def changes(self) -> int:
        """Grows with each change."""
        return self._changes

    @property
    def used(self) -> int:
        return self._used

    def recount(self, listing: Listing, since: int = 0) -> None:
        """Begin anew from what the directory holds, unless it changed since `changes` was `since`."""
        with self._lock:
            if self._changes != since:
                return
            self._files = {entry.name: entry.allocated for entry in listing.entries}
            self._own = listing.own_bytes
            self._used = self._own + sum(self._files.values())

    def set(self, name: str, allocated: int) -> None:
        """A file takes so much now; 0 when it is gone."""
        with self._lock:
            self._changes += 1
            self._used += allocated - self._files.pop(name, 0)
            if allocated:
                self._files[name] = allocated

    def require_segment(self, space: Space) -> None:
        """Raises NoRoom unless one more segment may be made."""
        settings, used = self._settings, self._used
        if used + settings.new_segment_bytes > settings.cap_bytes:
            raise NoRoom(
                "cap",
                f"{used} bytes used and {settings.new_segment_bytes} for a segment are over the cap of "
                f"{settings.cap_bytes}",
            )
        needed = settings.segment_bytes + settings.log_bytes
        if space.free - needed < settings.floor_bytes:
            raise NoRoom(
                "floor",
                f"{space.free} bytes free, less {needed} for a segment, are under the floor of {settings.floor_bytes}",
            )
