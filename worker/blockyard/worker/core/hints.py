"""What requests say of themselves: kept for as long as they last, for whatever decides about their chunks.

Owns the bound, and that hints end with their request or its session. Must never decide anything by them.
"""

from dataclasses import dataclass

from blockyard.common.messages import attach
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.sessions import Session, SessionBook

_DEFAULT = attach.Hints("default")
_FIELDS = {"priority": "priority", "ttl": "ttl_ms", "session": "session", "release": "release", "pin": "pin_ms"}
"""The message's fields by the name of the hint."""


@dataclass(frozen=True, slots=True)
class Hints:
    """One request's. Times in seconds, 0 means none; `priority` rises from 0 to 100."""

    priority: int
    ttl: float
    session: str
    release: bool
    pin: float

    @classmethod
    def of(cls, message: attach.Hints) -> "Hints":
        """The codec has checked the ranges."""
        return cls(message.priority, message.ttl_ms / 1000, message.session, message.release, message.pin_ms / 1000)


class HintBook:
    """Of a session's requests at most `limit` have hints at a time; those of further ones are dropped, and counted."""

    def __init__(self, book: SessionBook, counters: Counters, limit: int) -> None:
        self._book = book
        self._limit = limit
        self._counters = counters
        self._named = {name: counters.adder("blockyard_worker_hints_total", field=name) for name in _FIELDS}

    def get(self, session: int, request: str) -> Hints | None:
        """What a request said, until its end."""
        known = self._book.live(session)
        return known.hints.get(request) if known is not None else None

    def take(self, session: Session, message: attach.Hints) -> None:
        """A request says something; later words take the place of earlier ones."""
        for name, field in _FIELDS.items():
            if getattr(message, field) != getattr(_DEFAULT, field):
                self._named[name](1)
        if message.request not in session.hints and len(session.hints) >= self._limit:
            self._counters.add("blockyard_worker_hints_dropped_total")
        else:
            session.hints[message.request] = Hints.of(message)

    def finished(self, session: Session, request: str) -> None:
        """The request is over."""
        session.hints.pop(request, None)

    def __len__(self) -> int:
        return sum(len(session.hints) for session in self._book.sessions.values())
