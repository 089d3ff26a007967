"""A directory whose operations go wrong as told: real files or the simulator's below, faults between.

Owns which operation is hit and what happens to it; never knows what the files are for. Wrong without an error are
TORN, MISDIRECTED and FLIPPED: only who verifies notices them.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.io import Buffer, DiskDirectory, DiskFile, FileStat, Listing, Space, read_full

SECTOR = 512

WRITES = frozenset({"pwritev"})
READS = frozenset({"preadv"})
OPERATIONS = frozenset(
    {"pwritev", "preadv", "fdatasync", "truncate", "create", "open", "rename", "unlink", "sync", "entries", "space"}
)


class Kind(StrEnum):
    """What happens to an operation."""

    EIO = "eio"
    ENOSPC = "enospc"
    EROFS = "erofs"
    EINTR = "eintr"
    SHORT = "short"
    """A read or write does less than asked, and says so."""
    TORN = "torn"
    """Only the first sectors of a write arrive."""
    MISDIRECTED = "misdirected"
    """A read or write goes to another offset of the file."""
    FLIPPED = "flipped"
    """One bit of what is read or written is wrong."""
    HUNG = "hung"
    """Nothing happens until `release`; then the operation goes on."""
    SLOW = "slow"
    KILLED = "killed"
    """The process dies in the operation: a write's first sectors arrive, and nothing is done after."""


ERRORS = {
    Kind.EIO: errno.EIO,
    Kind.ENOSPC: errno.ENOSPC,
    Kind.EROFS: errno.EROFS,
    Kind.EINTR: errno.EINTR,
}


def strerror(code: int) -> OSError:
    """The exception that a system call with this outcome raises: the right subclass of OSError."""
    return OSError(code, os.strerror(code))


class ProcessKilled(BaseException):
    """What stands for SIGKILL where the process under test is this one."""


@dataclass
class Fault:
    """Hits the `at`-th operation from now on that matches, and the ones after it, `times` in all (0: for ever).

    `where`, in [0, 1), says how far into the operation it happens. `name` is part of the names of the files concerned.
    """

    kind: Kind
    on: frozenset[str] = OPERATIONS
    at: int = 1
    times: int = 1
    where: float = 0.5
    name: str = ""
    seconds: float = 0.01
    met: int = 0

    def hits(self, operation: str, name: str) -> bool:
        """Whether this operation is one of them; counts it."""
        if operation not in self.on or self.name not in name:
            return False
        self.met += 1
        return self.met >= self.at and (self.times == 0 or self.met < self.at + self.times)


class FaultyDirectory:
    """Passes everything on to `inner`, but for what a fault hits. The first fault that hits wins."""

    def __init__(self, inner: DiskDirectory) -> None:
        self.inner = inner
        self.faults: list[Fault] = []
        self.operations = 0
        self.injected = 0
        self.hanging = 0
        self._dead = False
        self._released = threading.Event()
        self._lock = threading.Lock()

    def inject(self, fault: Fault) -> Fault:
        if fault.kind is Kind.HUNG:
            self._released.clear()
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """No fault hits any more, and what hangs goes on."""
        self.faults.clear()
        self.release()

    def release(self) -> None:
        """Let everything that hangs go on; nothing hangs again before another fault says so."""
        self._released.set()

    def begin(self, operation: str, name: str) -> Fault | None:
        """Count an operation; raise, wait, or return a fault that the operation has to carry out itself."""
        with self._lock:
            if self._dead:
                raise ProcessKilled(operation)
            self.operations += 1
            hit = [fault for fault in self.faults if fault.hits(operation, name)]
            if not hit:
                return None
            self.injected += 1
            if hit[0].kind is Kind.KILLED:
                self._dead = True
        return self._apply(hit[0], operation)

    def _apply(self, fault: Fault, operation: str) -> Fault | None:
        if fault.kind in ERRORS:
            raise strerror(ERRORS[fault.kind])
        if fault.kind is Kind.HUNG:
            self._hang()
            return None
        if fault.kind is Kind.SLOW:
            time.sleep(fault.seconds)
            return None
        if fault.kind is Kind.KILLED and operation not in WRITES:
            raise ProcessKilled(operation)
        return fault if operation in WRITES | READS else None

    def _hang(self) -> None:
        with self._lock:
            self.hanging += 1
        self._released.wait()
        with self._lock:
            self.hanging -= 1

    @property
    def direct(self) -> bool:
        return self.inner.direct

    def entries(self) -> Listing:
        self.begin("entries", "")
        return self.inner.entries()

    def create(self, name: str, size: int, *, direct: bool) -> DiskFile:
        self.begin("create", name)
        return FaultyFile(self, name, self.inner.create(name, size, direct=direct))

    def open(self, name: str, *, direct: bool, write: bool = False) -> DiskFile:
        self.begin("open", name)
        return FaultyFile(self, name, self.inner.open(name, direct=direct, write=write))

    def rename(self, old: str, new: str) -> None:
        self.begin("rename", old)
        self.inner.rename(old, new)

    def unlink(self, name: str) -> None:
        self.begin("unlink", name)
        self.inner.unlink(name)

    def sync(self) -> None:
        self.begin("sync", "")
        self.inner.sync()

    def space(self) -> Space:
        self.begin("space", "")
        return self.inner.space()

    def device(self) -> int:
        return self.inner.device()


class FaultyFile:
    """A file of such a directory."""

    def __init__(self, directory: FaultyDirectory, name: str, inner: DiskFile) -> None:
        self._directory = directory
        self._name = name
        self._inner = inner

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        fault = self._directory.begin("pwritev", self._name)
        if fault is None:
            return self._inner.pwritev(buffers, offset)
        size = _length(buffers)
        if fault.kind is Kind.MISDIRECTED:
            return self._inner.pwritev(buffers, _elsewhere(offset))
        if fault.kind is Kind.SHORT:
            return self._inner.pwritev([_copy(buffers)[: _cut(size, fault.where, self._unit)]], offset)
        if fault.kind is Kind.FLIPPED:
            copy = _copy(buffers)
            _flip(copy, fault.where)
            self._inner.pwritev([copy], offset)
            return size
        self._write_torn(_copy(buffers), offset, int(size * fault.where) // SECTOR * SECTOR)
        if fault.kind is Kind.KILLED:
            raise ProcessKilled("pwritev")
        return size

    def preadv(self, buffers: Sequence[memoryview], offset: int) -> int:
        fault = self._directory.begin("preadv", self._name)
        if fault is None:
            return self._inner.preadv(buffers, offset)
        if fault.kind is Kind.SHORT:
            size = _cut(_length(buffers), fault.where, self._unit)
            return self._inner.preadv(_first(buffers, size), offset)
        if fault.kind is Kind.MISDIRECTED:
            return self._inner.preadv(buffers, _elsewhere(offset))
        done = self._inner.preadv(buffers, offset)
        if fault.kind is Kind.FLIPPED and done:
            _flip(_first(buffers, done)[0], fault.where)
        return done

    @property
    def _unit(self) -> int:
        return PAGE if self._directory.direct else 1

    def _write_torn(self, data: memoryview, offset: int, arrived: int) -> None:
        """Whole pages are written, as a direct file wants them: the old bytes stand behind those that arrived."""
        begin, end = offset // PAGE * PAGE, -(-(offset + arrived) // PAGE) * PAGE
        pages = aligned(max(PAGE, end - begin))
        there = read_full(self._inner, [pages[: end - begin]], begin)
        pages[offset - begin : offset - begin + arrived] = data[:arrived]
        if arrived:
            size = end - begin if self._directory.direct else max(there, offset - begin + arrived)
            self._inner.pwritev([pages[:size]], begin)

    def fdatasync(self) -> None:
        self._directory.begin("fdatasync", self._name)
        self._inner.fdatasync()

    def truncate(self, size: int) -> None:
        self._directory.begin("truncate", self._name)
        self._inner.truncate(size)

    def stat(self) -> FileStat:
        return self._inner.stat()

    def forget(self, offset: int, length: int) -> None:
        self._inner.forget(offset, length)

    def close(self) -> None:
        self._inner.close()


def _length(buffers: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _copy(buffers: Sequence[Buffer]) -> memoryview:
    whole = b"".join(buffers)
    memory = aligned(max(PAGE, len(whole)))[: len(whole)]
    memory[:] = whole
    return memory


def _cut(size: int, where: float, unit: int) -> int:
    """Less than `size`, but something: a multiple of `unit`, unless there is no such."""
    return max(int(size * where) // unit * unit, min(unit, size))


def _first(buffers: Sequence[memoryview], size: int) -> list[memoryview]:
    """The buffers' first `size` bytes."""
    found = []
    for buffer in buffers:
        if size > 0:
            found.append(buffer[:size])
        size -= len(buffer)
    return found


def _elsewhere(offset: int) -> int:
    return offset + PAGE if offset < 2 * PAGE else offset - PAGE


def _flip(data: memoryview, where: float) -> None:
    bit = int(len(data) * 8 * where)
    data[bit // 8] ^= 1 << bit % 8
