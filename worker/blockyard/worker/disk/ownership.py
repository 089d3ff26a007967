"""One worker per directory. Owns the lock file; must never know what else lies there.

The kernel lets go of the lock when the process has died, not before: a worker that is stuck in a file operation still
owns its directory, and may still write to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path

from blockyard.common.errors import BlockyardError
from blockyard.worker.disk.format.names import LOCK

_LONGEST_NAME = 256


class DirectoryOwned(BlockyardError):
    """Another process uses the directory."""


class Ownership:
    """Held until `close`, or the end of the process."""

    def __init__(self, path: Path, owner: str) -> None:
        """Raises DirectoryOwned naming the other, or OSError."""
        self._path = path
        self._owner = owner
        self._fd = _locked(path, owner, os.O_CREAT)
        self._device = os.fstat(self._fd).st_dev
        self._changing = threading.Lock()

    def ensure(self) -> None:
        """The lock still is the file of that name, or is taken anew: another directory may have the name by now.

        Raises OSError with ESTALE if it is gone, with EBUSY if another process uses what is there. Below a mount point
        where nothing is mounted any more nothing is begun: that is another file system's room.
        """
        with self._changing:
            if not self._is_there():
                self._take_anew()

    def close(self) -> None:
        """Let another worker have the directory."""
        os.close(self._fd)

    def _is_there(self) -> bool:
        held = os.fstat(self._fd)
        try:
            there = os.stat(self._path / LOCK, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    def _take_anew(self) -> None:
        try:
            same = os.stat(self._path).st_dev == self._device
        except FileNotFoundError:
            raise OSError(errno.ESTALE, "the directory is not there any more") from None
        try:
            found = _locked(self._path, self._owner, os.O_CREAT if same else 0)
        except FileNotFoundError:
            told = "another file system is there, without this directory's lock; if it is right, start the worker anew"
            raise OSError(errno.ESTALE, told) from None
        except DirectoryOwned as error:
            raise OSError(errno.EBUSY, str(error)) from None
        before, self._fd = self._fd, found
        self._device = os.fstat(found).st_dev
        os.close(before)


def _locked(path: Path, owner: str, create: int) -> int:
    # Whatever lies there under this name, opening it does not wait.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | create
    fd = os.open(path / LOCK, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(fd, _LONGEST_NAME, 0).decode(errors="replace")
        os.close(fd)
        raise DirectoryOwned(f"disk directory {path} is in use by {other or 'another process'}") from None
    except OSError:
        os.close(fd)
        raise
    # On a file system that is full there may be no place for the name.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, owner.encode()[:_LONGEST_NAME], 0)
    return fd
