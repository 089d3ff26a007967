"""Real files of one directory. Owns descriptors and flags; must never know what is in the files.

Paths are resolved anew by each operation, so a file system that was mounted again is met again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from blockyard.worker.disk.io import Buffer, Entry, FileStat, Listing, Space

_BLOCK = 512
"""Unit of st_blocks, on every file system."""


class RealFile:
    """One descriptor."""

    def __init__(self, fd: int, *, direct: bool) -> None:
        self._fd = fd
        self._direct = direct

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        if not os.fstat(self._fd).st_nlink:
            # Somebody removed it, so nobody could read this back.
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return os.pwritev(self._fd, buffers, offset)

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(self._fd, buffers, offset)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def stat(self) -> FileStat:
        found = os.fstat(self._fd)
        return FileStat(found.st_size, found.st_blocks * _BLOCK)

    def forget(self, offset: int, length: int) -> None:
        if not self._direct:
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        # The kernel frees the descriptor whatever close answers, and what had to be safe was synced.
        with contextlib.suppress(OSError):
            os.close(self._fd)


class RealDirectory:
    """A folder on a mounted file system. `direct` comes from probe.py.

    `ensure` is called where another folder may have its name by now, and raises OSError unless this is the right one.
    """

    def __init__(self, path: Path, *, direct: bool, ensure: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._direct = direct
        self._ensure = ensure

    @property
    def direct(self) -> bool:
        return self._direct

    def entries(self) -> Listing:
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append(Entry(entry.name, status.st_size, status.st_blocks * _BLOCK))
        own = os.stat(self.path).st_blocks * _BLOCK
        return Listing(tuple(sorted(found)), own)

    def create(self, name: str, size: int, *, direct: bool) -> RealFile:
        self._ensure()
        fd = self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, direct)
        try:
            if size:
                os.posix_fallocate(fd, 0, size)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(self.path / name)
            raise
        return RealFile(fd, direct=direct and self._direct)

    def open(self, name: str, *, direct: bool, write: bool = False) -> RealFile:
        try:
            fd = self._open(name, os.O_RDWR if write else os.O_RDONLY, direct)
        except FileNotFoundError:
            # One file that is missing is that; when all are missing, it is the device that fails.
            self._ensure()
            raise
        return RealFile(fd, direct=direct and self._direct)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path / old, self.path / new)

    def unlink(self, name: str) -> None:
        os.unlink(self.path / name)

    def sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self) -> Space:
        found = os.statvfs(self.path)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def device(self) -> int:
        return os.stat(self.path).st_dev

    def _open(self, name: str, flags: int, direct: bool) -> int:
        if direct and self._direct:
            flags |= os.O_DIRECT
        return os.open(self.path / name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
