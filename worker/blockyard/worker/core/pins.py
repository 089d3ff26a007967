"""Why a slot may not be reused: grants pin what a request may load, copies stand for bytes under way.

Owns who holds what, and until when. Must never free anything: the machine counts the uses of a chunk.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from blockyard.common.identity import Key
from blockyard.worker.core.chunks import Chunk

if TYPE_CHECKING:
    from blockyard.worker.core.sessions import Engine

CopyKind = Literal["store", "load"]


@dataclass(slots=True, eq=False)
class Copy:
    """A rank copies to or from these slots until it says that it does not, or is gone. It has no deadline."""

    kind: CopyKind
    job: int
    chunks: list[Chunk | None]
    """One per key of the job; None where the rank was given no slot."""


@dataclass(slots=True, eq=False)
class PinGrant:
    """Pins for one request of one engine, asked for by scheduler session `session`, until `deadline`."""

    number: int
    engine: "Engine"
    session: int
    request: str
    deadline: float
    chunks: dict[Key, Chunk]


@dataclass(slots=True)
class GrantBook:
    """All grants by number. They are made in order of their deadlines, so the first is the first to expire."""

    grants: OrderedDict[int, PinGrant] = field(default_factory=OrderedDict)
    _last: int = 0

    def open(self, engine: "Engine", session: int, request: str, deadline: float, chunks: dict[Key, Chunk]) -> PinGrant:
        self._last += 1
        grant = PinGrant(self._last, engine, session, request, deadline, chunks)
        self.grants[grant.number] = grant
        return grant

    def expired(self, now: float) -> list[PinGrant]:
        """Grants whose deadline has passed."""
        late = []
        for grant in self.grants.values():
            if grant.deadline > now:
                break
            late.append(grant)
        return late

    def next_deadline(self) -> float | None:
        return next(iter(self.grants.values())).deadline if self.grants else None
