"""Store jobs: what a scheduler reserved, and ranks that ask for a job before it is there.

Owns the jobs' entries and deadlines. Must never touch a slot.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from blockyard.common.identity import Key
from blockyard.common.messages.attach import Resolve
from blockyard.common.messages.states import CopyState
from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.sessions import Engine


@dataclass(slots=True, eq=False)
class FillJob:
    """One Fill. An entry is the chunk that was reserved for the key, or why there is none."""

    engine: Engine
    session: int
    number: int
    deadline: float
    entries: dict[Key, Chunk | CopyState] = field(default_factory=dict)
    open: int = 0
    """Chunks still being filled."""
    resolved: int = 0
    """Bit r: rank r has asked for its places."""

    @property
    def over(self) -> bool:
        """Nothing is being filled, and every rank has had its answer."""
        return not self.open and self.resolved == (1 << self.engine.local_ranks) - 1

    def open_chunks(self) -> list[Chunk]:
        """Chunks that this job is still filling."""
        return [one for one in self.entries.values() if isinstance(one, Chunk) and one.job is self]


@dataclass(slots=True)
class Parked:
    """A rank's Resolve that waits for the Fill of its job."""

    session: int
    message: Resolve
    deadline: float


@dataclass(slots=True)
class FillBook:
    """All jobs in order of their deadlines, and at most `max_parked` waiting resolves."""

    max_parked: int
    jobs: OrderedDict[FillJob, None] = field(default_factory=OrderedDict)
    parked: dict[tuple[int, int], Parked] = field(default_factory=dict)

    def add(self, job: FillJob) -> None:
        self.jobs[job] = None
        job.engine.jobs[job.number] = job

    def remove(self, job: FillJob) -> None:
        """Forget a job; safe to call again."""
        if job in self.jobs:
            del self.jobs[job], job.engine.jobs[job.number]

    def expired(self, now: float) -> list[FillJob]:
        """Jobs whose deadline has passed."""
        late = []
        for job in self.jobs:
            if job.deadline > now:
                break
            late.append(job)
        return late

    def park(self, session: int, message: Resolve, deadline: float) -> bool:
        """Let a resolve wait; False when too many do, or the same one already does."""
        place = (session, message.job)
        if len(self.parked) >= self.max_parked or place in self.parked:
            return False
        self.parked[place] = Parked(session, message, deadline)
        return True

    def unpark_late(self, now: float) -> list[Parked]:
        """Take out those that have waited long enough."""
        late = [place for place, one in self.parked.items() if one.deadline <= now]
        return [self.parked.pop(place) for place in late]

    def unpark_session(self, session: int) -> None:
        """Drop those of a session that will not hear the answer."""
        for place in [place for place in self.parked if place[0] == session]:
            del self.parked[place]

    def next_deadline(self) -> float | None:
        deadlines = [one.deadline for one in self.parked.values()]
        if self.jobs:
            deadlines.append(next(iter(self.jobs)).deadline)
        return min(deadlines, default=None)
