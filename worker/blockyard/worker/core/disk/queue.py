"""Which chunks should be on disk and are not: the coldest first, since those leave host memory first.

Owns the order and the admission; never knows whether a device has room or time.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.disk.settings import DiskSettings

if TYPE_CHECKING:
    from blockyard.worker.core.slots import SizeClass


class SpillQueue:
    """Chunks are in while they are ready, checked, admitted and nowhere on disk. Each call is O(1) a chunk.

    One that the disk has given up waits for its next use: else a disk smaller than the pool would write for ever.
    """

    def __init__(self, settings: DiskSettings) -> None:
        self.enabled = bool(settings.directories)
        self._always = settings.admission == "always"
        self._orders: dict[SizeClass, OrderedDict[Chunk, None]] = {}

    def consider(self, chunk: Chunk) -> None:
        """The chunk may be shared from now on, or has lost its copy on disk."""
        if not self.enabled or not chunk.checked or chunk.writing or chunk.unwanted:
            return
        if self.admits(chunk) and chunk.key not in chunk.size_class.on_disk:
            self._orders.setdefault(chunk.size_class, OrderedDict())[chunk] = None

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
