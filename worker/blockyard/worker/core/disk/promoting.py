"""Reads copies back into host slots. Owns which reads are under way and their bounds; never knows who waits.

One chunk is read once, however many ask for it. A read takes its slot as a store does: from free ones, or from what
is evicted for it, which is never pinned and always colder than what someone asks for now.
"""

from collections.abc import Callable

from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.disk.directories import DiskCopy
from blockyard.worker.core.disk.operations import Operations
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.core.disk.wire import ReadExtent
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction


class Promoting:
    """`start` begins a read, `ended` is told when it is over."""

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

    def start(self, copy: DiskCopy, now: float) -> int:
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

    def ended(self, chunk: Chunk) -> None:
        """A read into this slot is over, well or not."""
        chunk.read = 0
        self.reading_bytes -= chunk.size_class.slot_bytes
