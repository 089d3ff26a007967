"""What makes way when a slot is needed: the coldest chunk of the class, or a slab of another class that has been idle
for longer. Owns that choice; evicts nothing.
"""

from collections.abc import Mapping

from blockyard.common.identity import Key
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.slots import SizeClass, Slab, SlotPool
from blockyard.worker.core.worlds import WorldBook

_SLABS_TRIED = 4
"""Slabs of another class that are looked at for one that can be taken whole."""


class Room:
    """`index` are the chunks by key, `owners` those of slots that are not free. What step `step` has used stays."""

    def __init__(
        self, pool: SlotPool, worlds: WorldBook, index: Mapping[Key, Chunk], owners: Mapping[int, Chunk]
    ) -> None:
        self._pool = pool
        self._worlds = worlds
        self._index = index
        self._owners = owners

    def victims(self, size_class: SizeClass, step: int) -> tuple[list[Chunk], str]:
        """Those whose eviction makes a slot for this class, and why they go; none when everything is in use."""
        key = size_class.policy.victim(lambda key: self._in_use(self._index[key], step))
        own = None if key is None else self._index[key]
        slab = self._idle_slab(size_class, None if own is None else own.used, step)
        if slab is not None:
            return [self._owners[slot] for slot in self._pool.slots_of(slab) if slot in self._owners], "slab"
        return ([] if own is None else [own]), "room"

    def _idle_slab(self, size_class: SizeClass, before: int | None, step: int) -> Slab | None:
        """The coldest slab of another class that can be taken whole and was last used before step `before`."""
        coldest: Slab | None = None
        for other in self._worlds.classes():
            if other is size_class:
                continue
            for _ in range(min(_SLABS_TRIED, len(other.slabs))):
                slab = next(iter(other.slabs.values()))
                if coldest is not None and slab.used >= coldest.used:
                    break
                if before is not None and slab.used >= before:
                    break
                if self._can_be_taken(slab, step):
                    coldest = slab
                    break
                self._pool.touch(slab, step)
        return coldest

    def _can_be_taken(self, slab: Slab, step: int) -> bool:
        owners = (self._owners.get(slot) for slot in self._pool.slots_of(slab))
        return all(
            owner is None or (owner.state is ChunkState.READY and not self._in_use(owner, step)) for owner in owners
        )

    @staticmethod
    def _in_use(chunk: Chunk, step: int) -> bool:
        """Not to be evicted in this step; what the step itself has used counts as in use."""
        return chunk.pins > 0 or chunk.copiers > 0 or chunk.used == step
