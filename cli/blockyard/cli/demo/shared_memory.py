"""Owns the watch over /dev/shm: what our processes have there, and what of it is left when they are gone.

Blockyard itself has no name there; vLLM has, and a vLLM that is killed cannot remove them. Other programs' names
are never touched: only what a process of ours was seen to use counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108


class SharedMemory:
    """Remembers the names that processes use, each time `note` is called."""

    def __init__(self) -> None:
        self._seen: set[Path] = set()

    def note(self, pids: Iterable[int]) -> None:
        """Look at what these processes map; call it before they end."""
        for pid in pids:
            self._seen |= _mapped(pid)

    def left(self) -> list[Path]:
        """What is still there of all that was seen."""
        return sorted(path for path in self._seen if path.exists())

    def remove_left(self) -> list[Path]:
        """Remove it, as whoever kills an engine has to; returns what was removed."""
        left = self.left()
        for path in left:
            path.unlink(missing_ok=True)
        return left


def _mapped(pid: int) -> set[Path]:
    """By inode: a semaphore is mapped under a name that it had only while it was being made."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    # address, permissions, offset, device, inode, then the path, which may hold blanks.
    fields = [line.split(maxsplit=5) for line in lines]
    inodes = {int(field[4]) for field in fields if len(field) == 6 and field[5].startswith(f"{FOLDER}/")}
    with os.scandir(FOLDER) as entries:
        return {Path(entry.path) for entry in entries if entry.inode() in inodes}
