"""Acquires that wait for reads from a lower tier. Owns who waits for which reads, and until when; answers nobody.

Each waits at most as long as it asked for, and at most `max_waiting` do; what was ready when it came stays pinned for
it meanwhile, under a grant of its own that the engine never hears of.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from blockyard.common.identity import Key
from blockyard.common.messages.attach import Acquire
from blockyard.worker.core.pins import PinGrant
from blockyard.worker.core.sessions import Session


@dataclass(slots=True, eq=False)
class WaitingAcquire:
    """`reads` are those still under way. Half-way through it is time to start more, unless one has failed.

    `there` are the keys that were hits when it came, `held` the pins on what is one by now.
    """

    session: Session
    message: Acquire
    deadline: float
    reads: set[int]
    held: PinGrant | None
    there: Collection[Key]
    more: bool = True
    half: int = field(init=False)

    def __post_init__(self) -> None:
        self.half = len(self.reads) // 2

    @property
    def due(self) -> bool:
        """Whether there is something to do for it."""
        return len(self.reads) <= (self.half if self.more else 0)


class WaitingAcquires:
    """In no order: there are few, and each wait is short."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: dict[WaitingAcquire, None] = {}
        self._by_read: dict[int, list[WaitingAcquire]] = {}

    @property
    def full(self) -> bool:
        return len(self._all) >= self._limit

    def add(self, one: WaitingAcquire) -> None:
        self._all[one] = None
        for read in one.reads:
            self._by_read.setdefault(read, []).append(one)

    def read_ended(self, read: int, well: bool) -> list[WaitingAcquire]:
        """Those that it is time to look at again; they are taken out."""
        waited = self._by_read.pop(read, [])
        for one in waited:
            one.reads.discard(read)
            one.more = one.more and well
        return self._take(one for one in waited if one.due)

    def late(self, now: float) -> list[WaitingAcquire]:
        """Those whose time is over; they are taken out."""
        return self._take(one for one in self._all if one.deadline <= now)

    def of_session(self, session: Session) -> list[WaitingAcquire]:
        """Those of a session that will not hear the answer; they are taken out."""
        return self._take(one for one in self._all if one.session is session)

    def of_request(self, session: Session, request: str) -> list[WaitingAcquire]:
        """Those of a request that is over; they are taken out."""
        return self._take(one for one in self._all if one.session is session and one.message.request == request)

    def next_deadline(self) -> float | None:
        return min((one.deadline for one in self._all), default=None)

    def _take(self, which: Iterable[WaitingAcquire]) -> list[WaitingAcquire]:
        taken = list(which)
        for one in taken:
            del self._all[one]
            for read in one.reads:
                waiting = self._by_read[read]
                waiting.remove(one)
                if not waiting:
                    del self._by_read[read]
        return taken

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[WaitingAcquire]:
        return iter(self._all)
