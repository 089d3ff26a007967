"""Which requests are of the present epoch of the weights, and under which names their chunks are stored.

Owns the rule: a request stores only while its keys, and all that lies in its GPU blocks, are of the present epoch.
vLLM may keep blocks over a change, in requests that run and in its prefix cache; whoever begins with such a block is of
an older epoch too. Must never send or wait.
"""

from collections.abc import Sequence

from blockyard.engine.vllm.adapters import AdapterBook
from blockyard.engine.vllm.chains import NO_BLOCK
from blockyard.engine.vllm.epochs import Epochs
from blockyard.engine.vllm.groups import CacheGroup
from blockyard.engine.vllm.lookups import RequestState

BEFORE_ALL = 0
"""An earlier step than any."""


class Membership:
    """Of the requests of one engine with these cache groups."""

    def __init__(self, epochs: Epochs, groups: tuple[CacheGroup, ...], adapters: AdapterBook) -> None:
        self._epochs = epochs
        self._groups = groups
        self._adapters = adapters

    def begin(self, state: RequestState) -> None:
        """This request has no GPU blocks: whatever epoch it was of, it is of the present one now."""
        state.since = None
        if state.epoch != self._epochs.number:
            self._enter(state)

    def give_blocks(self, state: RequestState, blocks: Sequence[Sequence[int]], gpu_hit: int) -> None:
        """All of its GPU blocks, by group; those of its first `gpu_hit` tokens were computed before.

        vLLM tells of them once more when a load has ended: the request has not begun anew by that.
        """
        hits = [-(-gpu_hit // group.block_tokens) for group in self._groups]
        if state.since is None:
            found = (block for mine, hit in zip(blocks, hits, strict=True) for block in mine[:hit] if block != NO_BLOCK)
            state.since = self._epochs.earliest(found)
        for mine, hit in zip(blocks, hits, strict=True):
            self._epochs.fill(mine[hit:], state.since)

    def give_more_blocks(self, state: RequestState | None, blocks: Sequence[Sequence[int]]) -> None:
        """It goes on: what it computes comes from what it has computed."""
        since = state.since if state is not None else None
        for mine in blocks:
            self._epochs.fill(mine, BEFORE_ALL if since is None else since)

    def renew(self, state: RequestState) -> None:
        """A new epoch has begun: the request goes on in it if it has nothing of an older one."""
        if state.since is not None and self._epochs.includes(state.since):
            self._enter(state)

    def includes(self, state: RequestState) -> bool:
        """Whether what this request has computed may be stored under its keys."""
        named = bool(state.world) and state.epoch == self._epochs.number
        return named and state.since is not None and self._epochs.includes(state.since)

    def _enter(self, state: RequestState) -> None:
        world = self._epochs.world
        adapter = state.adapter
        state.enter(world if adapter is None else self._adapters.world(world, adapter), self._epochs.number)
