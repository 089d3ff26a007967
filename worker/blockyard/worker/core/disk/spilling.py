"""Writes chunks to disk ahead of their eviction. Owns the pace and the choice of a directory.

It never makes host memory wait: a chunk that is evicted before its turn is lost to the disk and counted. While it is
written its slot is held, so what is written at a time is bounded.
"""

from collections.abc import Callable

from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.disk.directories import Directories, Directory
from blockyard.worker.core.disk.operations import Operation, Operations
from blockyard.worker.core.disk.queue import SpillQueue
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.core.disk.wire import WriteExtent
from blockyard.worker.core.instructions import Instruction

_BURST_SECONDS = 1.0


class Spilling:
    """`pump` starts what may be written now."""

    def __init__(
        self,
        settings: DiskSettings,
        pool_bytes: int,
        counters: Counters,
        directories: Directories,
        operations: Operations,
        queue: SpillQueue,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._budget = min(settings.max_writing, int(settings.writing_share * pool_bytes))
        self._counters = counters
        self._directories = directories
        self._operations = operations
        self._queue = queue
        self._emit = emit
        self._credit = settings.write_rate * _BURST_SECONDS
        self._credit_at = 0.0
        self.writing_bytes = 0

    def pump(self, now: float) -> None:
        """Start writes until the pace, the held bytes or the devices say stop."""
        self._earn(now)
        while self._credit > 0:
            chunk = self._queue.coldest()
            if chunk is None or self._held(chunk) > self._budget:
                return
            directory = self._choose(chunk.size_class.shape.extent_bytes, now)
            if directory is None:
                return
            self._start(chunk, directory, now)

    def ended(self, operation: Operation) -> None:
        """A write is over, well or not."""
        chunk = operation.chunk
        assert chunk is not None
        chunk.writing = False
        self.writing_bytes -= chunk.size_class.slot_bytes

    def _held(self, chunk: Chunk) -> int:
        """Bytes held if this chunk were written too; one at a time always goes."""
        return self.writing_bytes + chunk.size_class.slot_bytes if self.writing_bytes else 0

    def _start(self, chunk: Chunk, directory: Directory, now: float) -> None:
        self._queue.remove(chunk)
        operation = self._operations.start("write", directory, now, chunk=chunk)
        size_class = chunk.size_class
        chunk.writing = True
        self.writing_bytes += size_class.slot_bytes
        self._credit -= size_class.slot_bytes
        self._counters.add("blockyard_worker_disk_writes_started_total")
        self._emit(
            WriteExtent(
                operation.number,
                directory.number,
                chunk.key,
                size_class.shape,
                chunk.slot,
                chunk.generation,
                chunk.offset,
            )
        )

    def _choose(self, size: int, now: float) -> Directory | None:
        """The least busy usable directory, then the emptiest."""
        usable = [one for one in self._directories.all if self._takes(one, size, now)]
        return min(usable, key=lambda one: (one.writes, one.file_bytes / one.settings.capacity_bytes), default=None)

    def _takes(self, one: Directory, size: int, now: float) -> bool:
        """Whether a copy of this size may be written there now.

        Half a segment at a time at most: the other half is for what moves on when the next segment has to go.
        """
        if not one.recovered or not one.breaker.closed or now < one.full_until:
            return False
        if one.writes >= self._settings.max_writes or size > one.room:
            return False
        return not one.writes or one.writing_bytes + size <= one.settings.segment_bytes // 2

    def _earn(self, now: float) -> None:
        most = self._settings.write_rate * _BURST_SECONDS
        self._credit = min(most, self._credit + (now - self._credit_at) * self._settings.write_rate)
        self._credit_at = now
