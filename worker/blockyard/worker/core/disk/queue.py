"""Which chunks should be on disk and are not: the coldest first, since those leave host memory first.

Owns the order and the admission; never knows whether a device has room or time.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.disk.settings import DiskSettings

if TYPE_CHECKING:
    from blockyard.worker.core.slots import SizeClass


class SpillQueue:
    """Chunks are in while they are ready, checked, admitted and nowhere on disk. Each call is O(1) a chunk.

    A copy on a device that is left alone does not count, if there is another directory. A chunk that the disk has given
    up waits for its next use: else a disk smaller than the pool would write for ever.
    """

    def __init__(self, settings: DiskSettings) -> None:
        self.enabled = bool(settings.directories)
        self._elsewhere = len(settings.directories) > 1
        self._always = settings.admission == "always"
        self._orders: dict[SizeClass, OrderedDict[Chunk, None]] = {}

    def consider(self, chunk: Chunk) -> None:
        """The chunk may be shared from now on, or has lost its copy on disk."""
        if not self.enabled or not chunk.checked or chunk.writing or chunk.unwanted:
            return
        if self.admits(chunk) and not self.covered(chunk):
            self._orders.setdefault(chunk.size_class, OrderedDict())[chunk] = None

    def reconsider(self, chunks: Iterable[Chunk]) -> None:
        """These have a copy more, or devices have come or gone on which they have theirs."""
        for chunk in chunks:
            if self.covered(chunk):
                self.remove(chunk)
            elif chunk.state is ChunkState.READY and chunk not in self:
                self.consider(chunk)

    def covered(self, chunk: Chunk) -> bool:
        """Whether there is a copy that counts."""
        copy = chunk.size_class.on_disk.get(chunk.key)
        return copy is not None and (copy.segment.directory.breaker.closed or not self._elsewhere)

    def admits(self, chunk: Chunk) -> bool:
        """Whether it is worth a write."""
        return self._always or chunk.hit > 0

    def used(self, chunks: Iterable[Chunk]) -> None:
        """These chunks of one class were used, the last of them most."""
        if not self.enabled:
            return
        for chunk in chunks:
            chunk.unwanted = False
            order = self._orders.get(chunk.size_class)
            if order is not None and chunk in order:
                order.move_to_end(chunk)
            else:
                self.consider(chunk)

    def remove(self, chunk: Chunk) -> bool:
        """The chunk leaves, or is being written; True if it waited."""
        order = self._orders.get(chunk.size_class)
        if order is None or chunk not in order:
            return False
        del order[chunk]
        if not order:
            del self._orders[chunk.size_class]
        return True

    def coldest(self) -> Chunk | None:
        """The chunk that is to be written next."""
        first = (next(iter(order)) for order in self._orders.values())
        return min(first, key=lambda chunk: chunk.used, default=None)

    def __len__(self) -> int:
        return sum(map(len, self._orders.values()))

    def __contains__(self, chunk: Chunk) -> bool:
        return chunk in self._orders.get(chunk.size_class, ())
