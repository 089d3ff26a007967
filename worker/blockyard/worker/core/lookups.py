"""What the keys of a run find. Owns the reasons for a miss; reads, and changes nothing."""

from collections.abc import Callable

from blockyard.common.identity import Key
from blockyard.common.messages.states import KeyState
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.slots import SizeClass

MISSES = (
    KeyState.NEVER_STORED,
    KeyState.EVICTED_HOST,
    KeyState.EVICTED_DISK,
    KeyState.NOT_ADMITTED,
    KeyState.BEING_FILLED,
    KeyState.FINGERPRINT,
    KeyState.PIN_BUDGET,
    KeyState.DEADLINE,
    KeyState.DISABLED,
    KeyState.CORRUPT,
    KeyState.PEER_GONE,
    KeyState.LEADER_UNKNOWN,
)
"""Reasons that a lookup can give."""


class Lookup:
    """Looks up runs for one engine. `found` are all hits, at most `budget` of them.

    `at_peers` says of a key that is nowhere here why peers did not give it, if they should have.
    """

    __slots__ = ("_at_peers", "_budget", "_engine", "_holdings", "found")

    def __init__(
        self, holdings: Holdings, engine: str, budget: int, at_peers: Callable[[Key], KeyState | None]
    ) -> None:
        self._at_peers = at_peers
        self._holdings = holdings
        self._engine = engine
        self._budget = budget
        self.found: dict[Key, Chunk] = {}

    def run(self, keys: list[Key], size_class: SizeClass | None, prefix: bool) -> tuple[bytes, list[Chunk]]:
        """One KeyState per key, and the hits in order; of a prefix run nothing counts after its first miss."""
        if size_class is None:
            return bytes([KeyState.FINGERPRINT]) * len(keys), []
        states = bytearray()
        hits: list[Chunk] = []
        get, found, budget, engine = self._holdings.index.get, self.found, self._budget, self._engine
        ready = ChunkState.READY
        for key in keys:
            chunk = get(key)
            if (
                chunk is not None
                and chunk.state is ready
                and (chunk.checked or chunk.engine == engine)
                and chunk.size_class is size_class
                and (len(found) < budget or key in found)
            ):
                found[key] = chunk
                hits.append(chunk)
                states.append(0)
                continue
            states.append(self._reason(key, chunk, size_class))
            if prefix:
                states += states[-1:] * (len(keys) - len(states))
                break
        return bytes(states), hits

    def _reason(self, key: Key, chunk: Chunk | None, size_class: SizeClass) -> KeyState:
        """Why this key is no hit."""
        if chunk is None:
            copy = size_class.on_disk.get(key)
            if copy is None:
                return self._at_peers(key) or self._holdings.ghosts.reason(key)
            return KeyState.DEADLINE if copy.segment.directory.breaker.closed else KeyState.DISABLED
        if chunk.size_class is not size_class:
            return KeyState.FINGERPRINT
        if chunk.state is ChunkState.READY and (chunk.checked or chunk.engine == self._engine):
            return KeyState.PIN_BUDGET
        return KeyState.DEADLINE if chunk.read else KeyState.BEING_FILLED
