"""One worker per directory. Owns the lock file; must never know what else lies there.

The kernel lets go of the lock when the process has died, not before: a worker that is stuck in a file operation still
owns its directory, and may still write to it.
"""

from __future__ import annotations

import fcntl
import os
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
        self._fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, owner.encode()[:_LONGEST_NAME], 0)
        except BlockingIOError:
            other = os.pread(self._fd, _LONGEST_NAME, 0).decode(errors="replace")
            os.close(self._fd)
            raise DirectoryOwned(f"disk directory {path} is in use by {other or 'another process'}") from None
        except OSError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Let another worker have the directory."""
        os.close(self._fd)
