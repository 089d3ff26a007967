"""Hashes committed slots off the event loop.

Owns a few threads and the slots that wait for them: at most one waiting per slot, so the queue is bounded by
the pool. Must never know what a checksum is for, nor touch the slot table.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.worker.pool import HostPool


@dataclass(frozen=True, slots=True)
class Area:
    """One slot's bytes as they were at `generation`: `areas` pieces of `area_bytes`, `stride` apart."""

    slot: int
    generation: int
    offset: int
    area_bytes: int
    areas: int
    stride: int


Done = Callable[[Area, tuple[int, ...] | str], None]
"""Called from a hashing thread, once per accepted request: the checksums, or why there are none."""


class ChecksumThreads:
    """Requests in, `done` out, in no promised order."""

    def __init__(self, pool: HostPool, threads: int, done: Done) -> None:
        self._pool = pool
        self._done = done
        self._waiting: OrderedDict[int, Area] = OrderedDict()
        self._wake = threading.Condition()
        self._stopping = False
        self._threads = [threading.Thread(target=self._run, name=f"checksum-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, area: Area) -> None:
        """Hash a slot soon. One that still waits for the same slot is of an older owner: it ends unhashed."""
        with self._wake:
            older = self._waiting.pop(area.slot, None)
            self._waiting[area.slot] = area
            self._wake.notify()
        if older is not None:
            self._done(older, "the slot has a new owner")

    def stop(self) -> None:
        """Returns when no thread reads the pool any more; what waits is dropped without an answer."""
        with self._wake:
            self._stopping = True
            self._waiting.clear()
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (area := self._next()) is not None:
            try:
                sums = self._pool.checksums(area.offset, area.areas, area.stride, area.area_bytes)
            except ValueError as error:
                self._done(area, str(error))
            else:
                self._done(area, sums)

    def _next(self) -> Area | None:
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._waiting)
            if self._stopping:
                return None
            return self._waiting.popitem(last=False)[1]
