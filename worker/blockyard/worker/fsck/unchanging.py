"""A directory in which nothing changes. Owns the refusal, and the names of what somebody wanted to remove.

The store's own judgement of a directory removes leftovers as it goes; on this one it only says which.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.io import read_full
from blockyard.worker.disk.real import RealDirectory, RealFile


class UnchangingDirectory(RealDirectory):
    """Real files that can only be read, through the page cache. `unwanted` are those that a start would remove."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, direct=False)
        self.unwanted: set[str] = set()

    def create(self, name: str, size: int, *, direct: bool) -> RealFile:
        _refuse()

    def open(self, name: str, *, direct: bool, write: bool = False) -> RealFile:
        return _refuse() if write else super().open(name, direct=direct)

    def rename(self, old: str, new: str) -> None:
        _refuse()

    def unlink(self, name: str) -> None:
        self.unwanted.add(name)
        _refuse()

    def start_of(self, name: str, size: int) -> memoryview:
        """The first `size` bytes of a file, or all that it has."""
        file = self.open(name, direct=False)
        try:
            memory = aligned(max(PAGE, size))
            return memory[: read_full(file, [memory[:size]], 0)]
        finally:
            file.close()


def _refuse() -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
