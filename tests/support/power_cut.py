"""Files that may lose what was not synced: remembers how to undo each change until a sync makes it last.

Owns the list of changes that power would have to survive; never knows what the files are for. After a cut the files
below are as a machine finds them that starts again; whoever held them open is gone.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.io import Buffer, DiskDirectory, DiskFile, FileStat, Listing, Space, read_full, write_all
from support.disk_faults import strerror


@dataclass(eq=False)
class Known:
    """A file, whatever it is called now; None when it has no name any more."""

    name: str | None


@dataclass(eq=False)
class Change:
    """One change that may still be undone. Those of a file's data last with its sync, others with the directory's."""

    file: Known
    of_data: bool
    undo: Callable[[], None]


@dataclass(eq=False)
class PowerCutDirectory:
    """Passes everything on to `inner`, and can take back what was not synced."""

    inner: DiskDirectory
    _changes: list[Change] = field(default_factory=list)
    _files: dict[str, Known] = field(default_factory=dict)
    _off: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def cut(self, survives: Callable[[], bool] = lambda: False) -> None:
        """Power is lost. `survives` is asked for each change that no sync protects, the newest first."""
        with self._lock:
            self._off = True
            for change in reversed(self._changes):
                if not survives():
                    change.undo()
            self._changes.clear()

    @property
    def direct(self) -> bool:
        return self.inner.direct

    def entries(self) -> Listing:
        return self.inner.entries()

    def create(self, name: str, size: int, *, direct: bool) -> DiskFile:
        self.check()
        with self._lock:
            made = self.inner.create(name, size, direct=direct)
            file = self._files[name] = Known(name)
            self._note(file, False, lambda: self._remove(file))
        return PowerCutFile(self, file, made)

    def open(self, name: str, *, direct: bool, write: bool = False) -> DiskFile:
        self.check()
        return PowerCutFile(self, self._known(name), self.inner.open(name, direct=direct, write=write))

    def rename(self, old: str, new: str) -> None:
        self.check()
        with self._lock:
            moved, there, replaced = self._known(old), self._known(new), self._kept(new)
            self.inner.rename(old, new)
            if there is not moved:
                there.name = None
            self._name(moved, new)

            def undo() -> None:
                if moved.name is not None:
                    self.inner.rename(moved.name, old)
                    self._name(moved, old)
                replaced()

            self._note(moved, False, undo)

    def unlink(self, name: str) -> None:
        self.check()
        with self._lock:
            file, again = self._known(name), self._kept(name)
            self.inner.unlink(name)
            file.name = None
            self._note(file, False, again)

    def sync(self) -> None:
        self.check()
        self.inner.sync()
        self._keep(lambda change: change.of_data)

    def space(self) -> Space:
        return self.inner.space()

    def device(self) -> int:
        return self.inner.device()

    def check(self) -> None:
        """Nobody does anything after a cut."""
        if self._off:
            raise strerror(errno.EIO)

    def note_data(self, file: Known, undo: Callable[[], None]) -> None:
        with self._lock:
            self._note(file, True, undo)

    def data_is_safe(self, file: Known) -> None:
        self._keep(lambda change: not (change.of_data and change.file is file))

    def _keep(self, still: Callable[[Change], bool]) -> None:
        with self._lock:
            self._changes = [change for change in self._changes if still(change)]

    def _note(self, file: Known, of_data: bool, undo: Callable[[], None]) -> None:
        self._changes.append(Change(file, of_data, undo))

    def _known(self, name: str) -> Known:
        if name not in self._files or self._files[name].name != name:
            self._files[name] = Known(name)
        return self._files[name]

    def _name(self, file: Known, name: str) -> None:
        file.name = name
        self._files[name] = file

    def _remove(self, file: Known) -> None:
        if file.name is not None:
            self.inner.unlink(file.name)
            file.name = None

    def _kept(self, name: str) -> Callable[[], None]:
        """How to bring a file back that is about to go."""
        file = self._known(name)
        try:
            before = self.inner.open(name, direct=False)
        except FileNotFoundError:
            return lambda: None
        size = before.stat().size
        content = bytearray(size)
        read_full(before, [memoryview(content)], 0)
        before.close()

        def again() -> None:
            if any(entry.name == name for entry in self.inner.entries().entries):
                return  # a later file of that name survived
            made = self.inner.create(name, size, direct=False)
            write_all(made, [content], 0)
            made.close()
            self._name(file, name)

        return again


class PowerCutFile:
    """A file of such a directory."""

    def __init__(self, directory: PowerCutDirectory, file: Known, inner: DiskFile) -> None:
        self._directory = directory
        self._file = file
        self._inner = inner

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._directory.check()
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._before(offset, size)
        return self._inner.pwritev(buffers, offset)

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._directory.check()
        return self._inner.preadv(buffers, offset)

    def fdatasync(self) -> None:
        self._directory.check()
        self._inner.fdatasync()
        self._directory.data_is_safe(self._file)

    def truncate(self, size: int) -> None:
        self._directory.check()
        self._before(size, max(0, self._inner.stat().size - size))
        self._inner.truncate(size)

    def stat(self) -> FileStat:
        return self._inner.stat()

    def forget(self, offset: int, length: int) -> None:
        self._inner.forget(offset, length)

    def close(self) -> None:
        self._inner.close()

    def _before(self, offset: int, size: int) -> None:
        """Remember what stands there now, and how long the file is."""
        begin, end = offset // PAGE * PAGE, -(-(offset + size) // PAGE) * PAGE
        length = self._inner.stat().size
        old = aligned(max(PAGE, end - begin))
        there = read_full(self._inner, [old[: end - begin]], begin) if end > begin else 0

        def undo() -> None:
            if self._file.name is None:
                return
            file = self._directory.inner.open(self._file.name, direct=False, write=True)
            file.truncate(length)
            if there > offset - begin:
                write_all(file, [old[offset - begin : min(there, offset + size - begin)]], offset)
            file.close()

        self._directory.note_data(self._file, undo)
