"""The latest claims, by which one key's life can be told. Owns a bounded memory of batches; decides nothing.

Batches are kept as they came, so that remembering costs one append a message; telling a story reads them all.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import Change


@dataclass(frozen=True, slots=True)
class Transition:
    """At `at` this node's claim on the key became `tiers` (0: nothing), by `cause`."""

    at: float
    node: str
    tiers: int
    cause: str


class Journal:
    """The last `limit` changes, in whole batches, the latest batch always among them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: deque[tuple[float, str, str, Sequence[Change]]] = deque()
        self.held = 0

    def note(self, now: float, node: str, cause: str, changes: Sequence[Change]) -> None:
        """Remember a batch, forgetting the oldest ones beyond the limit."""
        if not changes:
            return
        self._batches.append((now, node, cause, changes))
        self.held += len(changes)
        while self.held > self._limit and len(self._batches) > 1:
            self.held -= len(self._batches.popleft()[3])

    def story(self, key: Key) -> list[Transition]:
        """What is remembered of one key, the oldest first."""
        return [
            Transition(at, node, change.tiers, cause)
            for at, node, cause, changes in self._batches
            for change in changes
            if change.key == key
        ]

    def recent(self, node: str) -> list[Key]:
        """Keys that this node was last told to have, the latest first."""
        found: dict[Key, None] = {}
        for _, of, _, changes in reversed(self._batches):
            if of == node:
                found |= dict.fromkeys(change.key for change in reversed(changes) if change.tiers)
        return list(found)
