"""One key's life, for tests and people. Owns a bounded ring of transitions; decides nothing."""

from collections import deque
from typing import NamedTuple

from blockyard.common.identity import Key
from blockyard.worker.core.chunks import ChunkEvent, ChunkState


class Transition(NamedTuple):
    """One row of a story; `step` counts the events that the machine has handled."""

    step: int
    key: Key
    before: ChunkState
    event: ChunkEvent
    after: ChunkState
    slot: int
    generation: int


class Story:
    """The last transitions of all keys."""

    __slots__ = ("_ring",)

    def __init__(self, limit: int) -> None:
        self._ring: deque[Transition] = deque(maxlen=limit)

    def tell(self, transition: Transition) -> None:
        self._ring.append(transition)

    def of(self, key: Key) -> list[Transition]:
        return [one for one in self._ring if one.key == key]
