"""A chunk's life in the host pool. Owns the states and what may follow what; must never know who asks.

A slot in use (pinned, or with a copier) is never given back: what would free it dooms it instead, and it is
freed when its last use ends. That rule is the second column of the table.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

from blockyard.common.identity import Key

if TYPE_CHECKING:
    from blockyard.worker.core.fills import FillJob
    from blockyard.worker.core.slots import SizeClass, Slab


class ChunkState(IntEnum):
    """The numbers are SlotState's, so that a record's state is the chunk's."""

    ABSENT = 0
    FILLING = 1
    READY = 2
    DOOMED = 3


class ChunkEvent(IntEnum):
    RESERVED = 0
    """A slot was bound to the key."""
    FILLED = 1
    """Every local rank has filled its area."""
    ABORTED = 2
    """The fill will not be completed."""
    EVICTED = 3
    """The slot is needed for something else."""
    DROPPED = 4
    """The content must not be given to anyone any more."""
    UNUSED = 5
    """The last pin or copier has ended."""


_S, _E = ChunkState, ChunkEvent

# (state, event) -> state to go to when the slot is not in use, and when it is; None: may not happen.
TABLE: dict[tuple[ChunkState, ChunkEvent], tuple[ChunkState | None, ChunkState | None]] = {
    (_S.ABSENT, _E.RESERVED): (_S.FILLING, None),
    (_S.FILLING, _E.FILLED): (_S.READY, None),
    (_S.FILLING, _E.ABORTED): (_S.ABSENT, _S.DOOMED),
    (_S.READY, _E.EVICTED): (_S.ABSENT, None),
    (_S.READY, _E.DROPPED): (_S.ABSENT, _S.DOOMED),
    (_S.DOOMED, _E.UNUSED): (_S.ABSENT, None),
}

_NOWHERE = (None, None)


class ImpossibleTransition(AssertionError):
    """The machine tried what the table does not have: a fault of its own, never of an engine."""


def next_state(state: ChunkState, event: ChunkEvent, in_use: bool) -> ChunkState:
    """Where `event` leads from `state`; raises ImpossibleTransition where it may not happen."""
    following = TABLE.get((state, event), _NOWHERE)[in_use]
    if following is None:
        use = "in use" if in_use else "not in use"
        raise ImpossibleTransition(f"{event.name} may not happen to a chunk that is {state.name} and {use}")
    return following


class Chunk:
    """One chunk in one slot. It owns the slot until it is absent; `generation` is the slot's for that time."""

    __slots__ = (
        "checked",
        "checksums",
        "copiers",
        "engine",
        "from_peer",
        "generation",
        "hit",
        "job",
        "key",
        "offset",
        "parent",
        "parts",
        "pins",
        "read",
        "size_class",
        "slab",
        "slot",
        "state",
        "unwanted",
        "used",
        "writing",
    )

    def __init__(self, key: Key, parent: Key, size_class: "SizeClass", engine: str) -> None:
        self.key = key
        self.parent = parent
        """Key of the chunk before it in the request that stored it; empty at the root."""
        self.size_class = size_class
        self.engine = engine
        """Id of the engine that stores it."""
        self.state = ChunkState.ABSENT
        self.slab: Slab | None = None
        self.slot = -1
        self.offset = 0
        self.generation = 0
        self.job: FillJob | None = None
        self.parts = 0
        """Bit r: rank r has filled its area."""
        self.checked = False
        """Its checksums stand in the slot table."""
        self.checksums: tuple[int, ...] = ()
        self.pins = 0
        self.copiers = 0
        """Copies to or from its slot that are under way, an engine's or a device's."""
        self.used = 0
        """The machine's step in which it was last used."""
        self.hit = 0
        """The step in which a request last asked for it since it is ready; 0: none has, but the one that stored it."""
        self.read = 0
        """The operation that reads it from disk, or the fetch from a peer; 0 while none does."""
        self.from_peer = False
        """What fills its slot, or has filled it, is a fetch from a peer."""
        self.unwanted = False
        """The disk has given its copy up to make room, and it was not used since."""
        self.writing = False
        """It is being written to disk."""
