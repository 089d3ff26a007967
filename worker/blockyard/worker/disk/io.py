"""The seam between the disk tier and files: a few operations, each answered as the kernel would.

Owns the vocabulary and the loops over short answers. Must never know what the bytes mean. Every operation
returns or raises OSError; each may take for ever on a broken device, so none is called on an event loop.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """A file of a directory. `allocated` is what it takes from the file system, as `du` counts it."""

    name: str
    size: int
    allocated: int


class Listing(NamedTuple):
    """A directory's files, and the bytes that the directory itself takes."""

    entries: tuple[Entry, ...]
    own_bytes: int


class Space(NamedTuple):
    """Bytes of the file system; `free` are those that this process may use."""

    total: int
    free: int


class FileStat(NamedTuple):
    """Length and allocation of an open file."""

    size: int
    allocated: int


class DiskFile(Protocol):
    """An open file. Reads and writes may do less than asked, as system calls may."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Bytes written, counted from `offset`."""

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes read into the buffers in order; 0 at or past the end of the file.

        What the buffers hold behind these bytes is not defined: direct reads may have zeroed it.
        """

    def fdatasync(self) -> None:
        """Return when what was written survives a loss of power."""

    def truncate(self, size: int) -> None:
        """Cut the file; what lay beyond goes back to the file system."""

    def stat(self) -> FileStat:
        """Length and allocation now."""

    def forget(self, offset: int, length: int) -> None:
        """This range is not needed in memory: a buffered file lets the page cache have it back."""

    def close(self) -> None:
        """Give the descriptor back; never fails."""


class DiskDirectory(Protocol):
    """One directory of files without subdirectories. `direct`: whether its files may bypass the page cache."""

    @property
    def direct(self) -> bool:
        """What the probe found."""

    def entries(self) -> Listing:
        """All regular files."""

    def create(self, name: str, size: int, *, direct: bool) -> DiskFile:
        """A new file with `size` zero bytes that are its own already; FileExistsError if there is one.

        On failure no file is left, unless removing it fails too.
        """

    def open(self, name: str, *, direct: bool, write: bool = False) -> DiskFile:
        """An existing file."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a file of that name is replaced."""

    def unlink(self, name: str) -> None:
        """Remove a file; who has it open keeps its bytes."""

    def sync(self) -> None:
        """Return when creations, renames and removals survive a loss of power."""

    def space(self) -> Space:
        """Of the file system below."""

    def device(self) -> int:
        """Number of that file system: equal for directories that share its space."""


def write_all(file: DiskFile, buffers: Sequence[Buffer], offset: int) -> None:
    """Write every byte, however many calls it takes."""
    rest = [memoryview(buffer).cast("B") for buffer in buffers]
    while rest:
        try:
            done = file.pwritev(rest, offset)
        except InterruptedError:
            continue
        if done <= 0:
            raise OSError(errno.EIO, f"nothing written at {offset}")
        offset += done
        rest = _after(rest, done)


def read_full(file: DiskFile, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers; fewer bytes only where the file ends."""
    rest = [buffer.cast("B") for buffer in buffers]
    total = 0
    while rest:
        try:
            done = file.preadv(rest, offset + total)
        except InterruptedError:
            continue
        if done <= 0:
            break
        total += done
        rest = _after(rest, done)
    return total


def _after(buffers: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the buffers behind their first `done` bytes."""
    for index, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[index + 1 :]]
        done -= len(buffer)
    return []


def error_name(error: OSError) -> str:
    """A bounded word for counters: EIO, ENOSPC, …"""
    return errno.errorcode.get(error.errno or 0, "unknown")


def error_words(error: BaseException) -> str:
    """What went wrong, for people."""
    return (error.strerror or error_name(error)) if isinstance(error, OSError) else str(error) or type(error).__name__
