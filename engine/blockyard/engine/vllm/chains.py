"""One group's chunks of one request.

Owns the reading of vLLM's own lists, which grow as tokens come: keys, GPU blocks, and how far it has stored. Must never
change them.
"""

from itertools import islice
from typing import Protocol

from vllm.v1.kv_offload.base import OffloadKey

from blockyard.engine.jobs import BlockRange
from blockyard.engine.vllm.groups import CacheGroup

NO_BLOCK = 0
"""vLLM's id for a block that is not there (any more)."""


class GroupState(Protocol):
    """What vLLM remembers of a request in one group."""

    offload_keys: list[OffloadKey]
    block_ids: list[int]
    next_stored_chunk_idx: int


class Chain:
    """Chunks of one request in `group`, first chunk first."""

    def __init__(self, group: CacheGroup, state: GroupState) -> None:
        self.group = group
        self._state = state
        self._indexes: dict[OffloadKey, int] = {}

    @property
    def keys(self) -> list[OffloadKey]:
        return self._state.offload_keys

    def index(self, key: OffloadKey) -> int | None:
        """Which chunk this is the key of."""
        known = len(self._indexes)
        if known < len(self.keys):
            self._indexes.update((later, known + i) for i, later in enumerate(islice(self.keys, known, None)))
        return self._indexes.get(key)

    def blocks_to_store(self, index: int) -> BlockRange | None:
        """GPU blocks of a chunk's pages as far as a load may want them; None when one of them is not there.

        vLLM marks blocks that a window has left and another request took, but only from the first chunk on that it
        has not stored yet.
        """
        group = self.group
        if group.window and index < self._state.next_stored_chunk_idx:
            return None
        first = index * group.blocks_per_chunk
        blocks = self._state.block_ids[first + group.first_page : first + group.blocks_per_chunk]
        if len(blocks) < group.blocks_per_chunk - group.first_page or NO_BLOCK in blocks:
            return None
        return BlockRange(list(blocks), group.first_page, group.number)
