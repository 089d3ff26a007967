"""Engines and their sessions. Owns who is attached; must never know what they hold beyond its own lists.

An engine is one scheduler session and one session per local rank. It lives as long as one of them is live;
what its closed sessions leave behind stays with them until their process is gone or says that it has ended.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from blockyard.common.messages.attach import Hello
from blockyard.worker.core.pins import Copy, CopyKind, PinGrant
from blockyard.worker.core.worlds import World

if TYPE_CHECKING:
    from blockyard.worker.core.fills import FillJob
    from blockyard.worker.core.hints import Hints


class SessionState(Enum):
    LIVE = "live"
    CLOSED = "lost"
    """The socket is gone, the process may not be."""
    GONE = "gone"
    """Nothing of it is left."""


@dataclass(slots=True, eq=False)
class Engine:
    """One engine while it is attached. `ranks` and `scheduler` are its live sessions."""

    id: str
    model: str
    local_ranks: int
    world: World
    ranks: dict[int, "Session"] = field(default_factory=dict)
    scheduler: "Session | None" = None
    sessions: int = 0
    """Live and closed ones."""
    jobs: dict[int, "FillJob"] = field(default_factory=dict)
    requests: dict[str, list[PinGrant]] = field(default_factory=dict)
    pins: int = 0
    filling: int = 0

    @property
    def complete(self) -> bool:
        """All local ranks are attached."""
        return len(self.ranks) == self.local_ranks

    @property
    def live(self) -> bool:
        return bool(self.ranks) or self.scheduler is not None


@dataclass(slots=True, eq=False)
class Session:
    """One process of an engine. `copies` are a rank's transfers under way, `hints` those of a scheduler's requests."""

    id: int
    role: Literal["scheduler", "rank"]
    rank: int
    engine: Engine
    state: SessionState = SessionState.LIVE
    copies: dict[tuple[CopyKind, int], Copy] = field(default_factory=dict)
    hints: dict[str, "Hints"] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Nothing is held in its name."""
        if self.role == "rank":
            return not self.copies
        granted = any(grant.session == self.id for held in self.engine.requests.values() for grant in held)
        return not granted and not any(job.session == self.id for job in self.engine.jobs.values())


@dataclass(slots=True)
class Waiting:
    """A scheduler that waits for its ranks."""

    session: int
    hello: Hello
    deadline: float


@dataclass(slots=True)
class SessionBook:
    """All sessions by number, engines with a live session by id, and schedulers that wait for their ranks."""

    sessions: dict[int, Session] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sessions) + len(self.waiting)

    def live(self, number: int) -> Session | None:
        """The session, if it is there and its socket is."""
        session = self.sessions.get(number)
        return session if session is not None and session.state is SessionState.LIVE else None

    def previous(self, hello: Hello, boot_id: bytes) -> Session | None:
        """The session that this hello says has ended, if it may say so."""
        session = self.sessions.get(hello.previous)
        if session is None or hello.previous_boot != boot_id:
            return None
        same = (session.engine.id, session.role) == (hello.engine, hello.role)
        return session if same and (hello.role == "scheduler" or session.rank == hello.rank) else None

    def waiting_for(self, engine: str) -> Waiting | None:
        """The scheduler of this engine, if it waits for its ranks."""
        return next((one for one in self.waiting.values() if one.hello.engine == engine), None)

    def add(self, session: Session) -> None:
        engine = session.engine
        if not engine.sessions:
            engine.world.engines += 1
        engine.sessions += 1
        self.sessions[session.id] = session
        self.engines[engine.id] = engine
        if session.role == "rank":
            engine.ranks[session.rank] = session
        else:
            engine.scheduler = session

    def close(self, session: Session) -> None:
        """The socket is gone: the session takes no more part in its engine, and will not say what its requests do."""
        engine = session.engine
        session.hints.clear()
        session.state = SessionState.CLOSED
        if session.role == "rank":
            del engine.ranks[session.rank]
        else:
            engine.scheduler = None
        if not engine.live and self.engines.get(engine.id) is engine:
            del self.engines[engine.id]

    def remove(self, session: Session) -> None:
        """Nothing is left of a closed session. Precondition: it is idle."""
        session.state = SessionState.GONE
        del self.sessions[session.id]
        session.engine.sessions -= 1
        if not session.engine.sessions:
            session.engine.world.engines -= 1

    def next_deadline(self) -> float | None:
        return min((one.deadline for one in self.waiting.values()), default=None)
