"""Reads copies back into host slots. Owns which reads are under way and their bounds; never knows who waits.

One chunk is read once, however many ask for it. A read takes its slot as a store does: from free ones, or from what
is evicted for it, which is never pinned and always colder than what someone asks for now.
"""

from collections.abc import Callable, Iterable

from blockyard.common.identity import Key
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.disk.directories import DiskCopy
from blockyard.worker.core.disk.operations import Operations
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.core.disk.wire import ReadExtent
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction
from blockyard.worker.core.slots import SizeClass


class Promoting:
    """`start_run` begins what a run lacks and the disk has."""

    def __init__(
        self,
        settings: DiskSettings,
        pool_bytes: int,
        holdings: Holdings,
        operations: Operations,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._budget = int(settings.promoting_share * pool_bytes)
        self._holdings = holdings
        self._operations = operations
        self._emit = emit
        self.reading_bytes = 0

    def start_run(self, keys: Iterable[Key], size_class: SizeClass, prefix: bool, now: float) -> set[int]:
        """The reads, begun now or before, that would make more of these keys a hit.

        Of a prefix run only those that follow on what is there without a gap.
        """
        if not size_class.on_disk:
            return set()
        reads: set[int] = set()
        for key in keys:
            chunk = self._holdings.index.get(key)
            if chunk is None:
                copy = size_class.on_disk.get(key)
                read = 0 if copy is None else self._start(copy, now)
            elif chunk.state is ChunkState.READY:
                continue
            else:
                read = chunk.read
            if read:
                reads.add(read)
            elif prefix:
                break
        return reads

    def ended(self, chunk: Chunk) -> None:
        """A read into this slot is over, well or not."""
        chunk.read = 0
        self.reading_bytes -= chunk.size_class.slot_bytes

    def _start(self, copy: DiskCopy, now: float) -> int:
        """The number of the new read; 0 when it may not be, or there is no room for it."""
        size_class, directory = copy.size_class, copy.segment.directory
        if copy.segment.leaving or not directory.breaker.closed or directory.reads >= self._settings.max_reads:
            return 0
        if self.reading_bytes and self.reading_bytes + size_class.slot_bytes > self._budget:
            return 0
        chunk = self._holdings.reserve(copy.key, copy.parent, size_class, "")
        if chunk is None:
            return 0
        operation = self._operations.start("read", directory, now, chunk=chunk, copy=copy)
        chunk.read = operation.number
        self.reading_bytes += size_class.slot_bytes
        copy.segment.used = self._holdings.step
        self._emit(
            ReadExtent(
                operation.number,
                directory.number,
                copy.extent,
                chunk.slot,
                chunk.generation,
                chunk.offset,
            )
        )
        return operation.number
