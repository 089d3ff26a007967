"""A directory of files in memory that answers as the kernel does. Owns what each page of a disk really holds.

A page is kept as its bytes without the zeros at its end, so a page written from a tag of the model memory costs no more
than the tag, and yet every byte is exact. Nothing here takes time or goes wrong by itself but for lack of space.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.io import Buffer, Entry, FileStat, Listing, Space
from support.disk_faults import strerror

_DIRECT_UNIT = 512


@dataclass(eq=False)
class Inode:
    """One file's bytes. `taken` are the pages that it has been given; others of it read as zeros."""

    size: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    links: int = 1
    opened: int = 0


class ModelDirectory:
    """A file system of its own with room for `capacity` bytes."""

    def __init__(self, capacity: int, *, direct: bool = True, number: int = 1) -> None:
        self._capacity = capacity // PAGE * PAGE
        self._direct = direct
        self._number = number
        self._inodes: dict[str, Inode] = {}
        self._opened: dict[ModelFile, None] = {}
        self._taken_pages = 0

    @property
    def direct(self) -> bool:
        return self._direct

    def entries(self) -> Listing:
        found = [Entry(name, one.size, len(one.taken) * PAGE) for name, one in sorted(self._inodes.items())]
        return Listing(tuple(found), PAGE)

    def create(self, name: str, size: int, *, direct: bool) -> ModelFile:
        if name in self._inodes:
            raise strerror(errno.EEXIST)
        inode = Inode(size)
        pages = range(-(-size // PAGE))
        if not self.take(inode, pages):
            raise strerror(errno.ENOSPC)
        self._inodes[name] = inode
        return ModelFile(self, inode, direct=direct and self._direct, write=True)

    def open(self, name: str, *, direct: bool, write: bool = False) -> ModelFile:
        return ModelFile(self, self._inode(name), direct=direct and self._direct, write=write)

    def rename(self, old: str, new: str) -> None:
        moved = self._inode(old)
        if old == new:
            return
        if new in self._inodes:
            self.unlink(new)
        del self._inodes[old]
        self._inodes[new] = moved

    def unlink(self, name: str) -> None:
        inode = self._inode(name)
        del self._inodes[name]
        inode.links -= 1
        self.let_go(inode)

    def sync(self) -> None:
        """All is kept; what a loss of power takes back is decided above."""

    def space(self) -> Space:
        return Space(self._capacity, self._capacity - self._taken_pages * PAGE)

    def device(self) -> int:
        return self._number

    def opened(self, file: ModelFile) -> None:
        self._opened[file] = None

    def closed(self, file: ModelFile) -> None:
        self._opened.pop(file, None)

    def end_process(self) -> None:
        """Whoever has files open is dead; the kernel closes them."""
        for file in list(self._opened):
            file.close()

    def take(self, inode: Inode, pages: Sequence[int]) -> bool:
        """Give a file pages of the disk, all of them or none."""
        wanted = [page for page in pages if page not in inode.taken]
        if self._taken_pages + len(wanted) > self._capacity // PAGE:
            return False
        inode.taken.update(wanted)
        self._taken_pages += len(wanted)
        return True

    def give_back(self, inode: Inode, first: int) -> None:
        """From page `first` on."""
        for page in [page for page in inode.taken if page >= first]:
            inode.taken.remove(page)
            inode.pages.pop(page, None)
            self._taken_pages -= 1

    def let_go(self, inode: Inode) -> None:
        """A name or a descriptor of it is gone; with the last one its space is free."""
        if not inode.links and not inode.opened:
            self.give_back(inode, 0)

    def _inode(self, name: str) -> Inode:
        if name not in self._inodes:
            raise strerror(errno.ENOENT)
        return self._inodes[name]


class ModelFile:
    """One descriptor."""

    def __init__(self, directory: ModelDirectory, inode: Inode, *, direct: bool, write: bool) -> None:
        self._directory = directory
        self._inode = inode
        self._direct = direct
        self._write = write
        self._open = True
        inode.opened += 1
        directory.opened(self)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        if not self._inode.links:
            raise strerror(errno.ESTALE)
        if not self._write:
            raise strerror(errno.EBADF)
        data = b"".join(buffers)
        self._check(buffers, offset)
        done = 0
        while done < len(data):
            page, begin = divmod(offset + done, PAGE)
            if not self._directory.take(self._inode, [page]):
                break
            piece = data[done : done + PAGE - begin]
            self._put(page, begin, piece)
            done += len(piece)
        if data and not done:
            raise strerror(errno.ENOSPC)
        self._inode.size = max(self._inode.size, offset + done)
        return done

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._check(buffers, offset)
        done = 0
        for buffer in buffers:
            view = buffer.cast("B")
            data = self._bytes(offset + done, len(view))
            view[: len(data)] = data
            done += len(data)
        return done

    def fdatasync(self) -> None:
        self._check((), 0)

    def truncate(self, size: int) -> None:
        if not self._write:
            raise strerror(errno.EINVAL)
        if size < self._inode.size:
            self._directory.give_back(self._inode, -(-size // PAGE))
            page, rest = divmod(size, PAGE)
            if rest and page in self._inode.pages:
                self._inode.pages[page] = self._inode.pages[page][:rest].rstrip(b"\0")
        self._inode.size = size

    def stat(self) -> FileStat:
        return FileStat(self._inode.size, len(self._inode.taken) * PAGE)

    def forget(self, offset: int, length: int) -> None:
        """There is no cache."""

    def close(self) -> None:
        if self._open:
            self._open = False
            self._inode.opened -= 1
            self._directory.closed(self)
            self._directory.let_go(self._inode)

    def _check(self, buffers: Sequence[Buffer], offset: int) -> None:
        if not self._open:
            raise strerror(errno.EBADF)
        if self._direct and any(value % _DIRECT_UNIT for value in (offset, *map(len, buffers))):
            raise strerror(errno.EINVAL)

    def _put(self, page: int, begin: int, piece: bytes) -> None:
        if len(piece) < PAGE:
            old = self._inode.pages.get(page, b"").ljust(PAGE, b"\0")
            piece = old[:begin] + piece + old[begin + len(piece) :]
        self._inode.pages[page] = piece.rstrip(b"\0")

    def _bytes(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self._inode.size)
        if end <= offset:
            return b""
        first, last = offset // PAGE, (end - 1) // PAGE
        whole = b"".join(self._inode.pages.get(page, b"").ljust(PAGE, b"\0") for page in range(first, last + 1))
        return whole[offset - first * PAGE : end - first * PAGE]
