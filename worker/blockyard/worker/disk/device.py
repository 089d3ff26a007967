"""One directory as the core sees it: an instruction in, exactly one event out. Owns what each operation means for the
store and what its errors mean for the core; must never know threads, or decide what is written or read.

A directory that cannot be opened is told as trouble and tried again; until then whatever the core asks is refused.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Protocol

from blockyard.worker.core.disk import wire
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.errors import ExtentTooLarge, NoRoom, SegmentGone
from blockyard.worker.disk.format.errors import FormatError
from blockyard.worker.disk.format.values import NO_SALT, Extent, Shape
from blockyard.worker.disk.io import error_words
from blockyard.worker.disk.opening import Opening, Runner
from blockyard.worker.disk.segments import SegmentStore, Started
from blockyard.worker.disk.threads import Expired, IoClass

_FULL = {errno.ENOSPC, errno.EDQUOT}


class SlotMemory(Protocol):
    """The host pool, as a device reads and fills it."""

    def areas(self, offset: int, areas: int, stride: int) -> list[memoryview]:
        """Each area of a slot."""

    def shown_checksums(self, slot: int, generation: int) -> tuple[int, ...] | None:
        """What the slot table says; None when the slot has another owner by now."""


class Device:
    """`open_store` blocks; `feed` takes events on the caller's thread; `trouble` hears why the directory is not used,
    or nothing when it is again.
    """

    def __init__(
        self,
        number: int,
        runner: Runner,
        memory: SlotMemory,
        open_store: Callable[[], tuple[SegmentStore, Started]],
        feed: Callable[[wire.DiskEvent], None],
        trouble: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._memory = memory
        self._feed = feed
        self._opening = Opening(number, runner, open_store, feed, trouble)
        self._syncing = False

    @property
    def store(self) -> SegmentStore | None:
        """None before the directory is open."""
        return self._opening.store

    def tick(self, now: float) -> None:
        """Open the directory, and read what could not be read, now and whenever it is time to try again."""
        self._opening.tick(now)

    def execute(self, one: wire.DiskInstruction) -> None:
        """Begin an operation; its event comes later, never before this returns to the core."""
        store = self.store
        if isinstance(one, wire.DropExtents):
            if store is not None:
                self._drop(store, one.extents)
        elif store is None:
            self._feed(wire.DiskFailed(one.op, "io", "the directory is not open"))
        elif isinstance(one, wire.WriteExtent):
            self._write(store, one)
        elif isinstance(one, wire.ReadExtent):
            areas = self._areas(one.extent.shape, one.offset)
            self._begin(one.op, IoClass.DEMAND, _size(one.extent), lambda: store.read(one.extent, areas), _read)
        elif isinstance(one, wire.MoveExtent):
            self._begin(one.op, IoClass.SPILL, 2 * _size(one.extent), lambda: _move(store, one.extent), _written)
        elif isinstance(one, wire.ReclaimSegment):
            self._begin(one.op, IoClass.UPKEEP, 0, lambda: store.reclaim(one.segment), _reclaimed)
        else:
            self._begin(one.op, IoClass.UPKEEP, 0, store.probe, lambda op, _: wire.DiskProbed(op))

    def sync(self) -> None:
        """What was acknowledged is to survive a loss of power. A device that cannot will fail at other things too.

        One at a time: those of a device that hangs would take every thread that writes.
        """
        if self.store is not None and not self._syncing:
            self._syncing = self._runner.submit(IoClass.UPKEEP, 0, self.store.sync, self._synced)

    def _synced(self, result: object) -> None:
        self._syncing = False

    def _write(self, store: SegmentStore, one: wire.WriteExtent) -> None:
        checksums = self._memory.shown_checksums(one.slot, one.generation)
        if checksums is None:
            self._feed(wire.DiskFailed(one.op, "busy", f"slot {one.slot} shows no checksums"))
            return
        areas = self._areas(one.shape, one.offset)
        self._begin(
            one.op,
            IoClass.SPILL,
            one.shape.extent_bytes,
            lambda: store.append(one.key, NO_SALT, one.shape, checksums, areas),
            _written,
        )

    def _areas(self, shape: Shape, offset: int) -> list[memoryview]:
        return self._memory.areas(offset, shape.areas, shape.stride)

    def _drop(self, store: SegmentStore, extents: list[Extent]) -> None:
        """As far as it goes: what is found again holds what its key says, so a lost drop is no wrong answer."""

        def work() -> None:
            for extent in extents:
                store.drop(extent)

        self._runner.submit(IoClass.UPKEEP, 0, work, _ignore)

    def _begin(
        self,
        op: int,
        kind: IoClass,
        size: int,
        work: Callable[[], object],
        event: Callable[[int, object], wire.DiskEvent],
    ) -> None:
        def answer(result: object) -> None:
            self._feed(_failed(op, result) if isinstance(result, BaseException) else event(op, result))

        if not self._runner.submit(kind, size, work, answer):
            self._feed(wire.DiskFailed(op, "busy", "too many operations wait"))


def _move(store: SegmentStore, extent: Extent) -> Extent:
    shape = extent.shape
    memory = aligned(shape.areas * shape.stride)
    areas = [memory[i * shape.stride : (i + 1) * shape.stride] for i in range(shape.areas)]
    checksums = store.read(extent, areas)
    return store.append(extent.key, extent.salt_tag, shape, checksums, areas)


def _size(extent: Extent) -> int:
    return extent.shape.extent_bytes


def _written(op: int, result: object) -> wire.DiskEvent:
    assert isinstance(result, Extent)
    return wire.DiskWritten(op, result)


def _read(op: int, result: object) -> wire.DiskEvent:
    assert isinstance(result, tuple)
    return wire.DiskRead(op, result)


def _reclaimed(op: int, result: object) -> wire.DiskEvent:
    return wire.DiskReclaimed(op) if result else wire.DiskFailed(op, "busy", "the segment is in use")


def _failed(op: int, error: BaseException) -> wire.DiskEvent:
    return wire.DiskFailed(op, _reason(error), error_words(error))


def _reason(error: BaseException) -> wire.Failure:
    if isinstance(error, NoRoom):
        return "full"
    if isinstance(error, SegmentGone):
        return "gone"
    if isinstance(error, FormatError):
        return "corrupt"
    if isinstance(error, Expired | ExtentTooLarge):
        return "busy"
    if isinstance(error, FileNotFoundError):
        return "gone"
    if isinstance(error, OSError):
        return "full" if error.errno in _FULL else "io"
    raise error


def _ignore(result: object) -> None:
    """Nothing follows from it."""
