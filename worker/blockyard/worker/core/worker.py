"""The machine: one event in, the instructions that follow from it out.

    handle(now, event) -> list[Instruction]     in the order of execution; no clock, no I/O, no threads
    validate()                                  raises InvariantBroken when the books do not agree

Owns which part acts on which event, the coming and going of sessions, and pins. Must never know sockets,
files or etcd. The parts: holdings (chunks and slots), transfers (stores and loads), pinning (what requests may
load), the book of sessions, outbox.
"""

from collections.abc import Callable
from typing import Any

from blockyard.common.fencing import EpochFence
from blockyard.common.identity import Key
from blockyard.common.messages import attach
from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.spec import Part
from blockyard.common.slot_table import table_bytes
from blockyard.worker.core import admission, events, frames, invariants
from blockyard.worker.core.admission import Refusal
from blockyard.worker.core.gauges import show, stats
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import (
    Accept,
    CloseSession,
    Instruction,
    Publish,
    Send,
    ToLeader,
    Unwatch,
)
from blockyard.worker.core.outbox import Outbox
from blockyard.worker.core.pinning import Pinning
from blockyard.worker.core.pins import GrantBook
from blockyard.worker.core.policies.base import EvictionPolicy
from blockyard.worker.core.policies.lru import LeastRecentlyUsed
from blockyard.worker.core.sessions import Engine, Session, SessionBook, SessionState, Waiting
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.story import Transition
from blockyard.worker.core.transfers import Transfers
from blockyard.worker.core.worlds import WorldBook, shapes_of


class WorkerCore:
    """One worker's state. `counters` are moved as things happen, gauges only by `show_gauges`."""

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters | None = None,
        policy: Callable[[], EvictionPolicy] = LeastRecentlyUsed,
    ) -> None:
        self.settings = settings
        self.counters = Counters(Part.WORKER) if counters is None else counters
        self.now = 0.0
        self._out: list[Instruction] = []
        self.worlds = WorldBook(settings, policy)
        self.outbox = Outbox(settings, self.counters, self.worlds.by_fingerprint)
        self.holdings = Holdings(settings, self.counters, self.worlds, self.outbox, self._emit)
        self.grants = GrantBook()
        self.pinning = Pinning(settings, self.counters, self.holdings, self.grants, self._emit)
        self.transfers = Transfers(settings, self.counters, self.holdings, self.grants, self._emit)
        self.book = SessionBook()
        self.fence = EpochFence()
        self.incarnation = 0
        self.draining = False
        self._stats_due = 0.0
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.AttachAsked: self._attach_asked,
            events.Received: self._received,
            events.SessionClosed: self._session_closed,
            events.ProcessGone: self._process_gone,
            events.ChecksumDone: self._checksum_done,
            events.ChecksumFailed: self._checksum_failed,
            events.LinkUp: self._link_up,
            events.LinkDown: self._link_down,
            events.LinkAcked: self._link_acked,
            events.ResyncAsked: self._resync_asked,
            events.Incarnated: self._incarnated,
            events.DrainAsked: self._drain_asked,
            events.Tick: self._tick,
        }
        self._receivers: dict[type, tuple[str, Callable[[Session, Any], None]]] = {
            attach.Acquire: ("scheduler", self._acquire),
            attach.Release: ("scheduler", self._release),
            attach.Fill: ("scheduler", self._fill),
            attach.Finish: ("scheduler", self._finish),
            attach.Forget: ("scheduler", self._forget),
            attach.Resolve: ("rank", self._resolve),
            attach.StoreDone: ("rank", self._done),
            attach.LoadDone: ("rank", self._done),
            attach.EngineCounters: ("", self._engine_counters),
            attach.Bye: ("", self._bye),
        }

    # -- interface ---------------------------------------------------------------------------------

    def handle(self, now: float, event: events.Event) -> list[Instruction]:
        """One step. `now` is monotonic; should it ever fall, time stands still."""
        self.now = max(self.now, now)
        self.holdings.step += 1
        self._handlers[type(event)](event)
        out = self._out.copy()
        self._out.clear()
        return out

    def validate(self) -> None:
        """Raise InvariantBroken when any invariant does not hold."""
        invariants.check(self)

    def story(self, key: Key) -> list[Transition]:
        """The last transitions of a key."""
        return self.holdings.story.of(key)

    def next_deadline(self) -> float | None:
        """When a Tick is needed at the latest, or None while nothing waits."""
        deadlines = (
            self.grants.next_deadline(),
            self.transfers.fills.next_deadline(),
            self.book.next_deadline(),
        )
        return min((one for one in deadlines if one is not None), default=None)

    @property
    def next_seq(self) -> int:
        """The seq of the next Delta, for a WorkerHello."""
        return self.outbox.next_seq

    def show_gauges(self) -> None:
        """Bring the gauges among the counters up to date; meant for scrapes."""
        show(self)

    # -- sessions ----------------------------------------------------------------------------------

    def _attach_asked(self, event: events.AttachAsked) -> None:
        hello = event.hello
        previous = self.book.previous(hello, self.settings.boot_id)
        if previous is not None:
            self._end_session(previous, "replaced by a new session of the same process")
        refusal = self._refusal(event.session, hello)
        if refusal is not None:
            self._refuse(event.session, refusal)
        elif hello.role == "scheduler":
            deadline = self.now + self.settings.ranks_deadline
            self.book.waiting[event.session] = Waiting(event.session, hello, deadline)
            self._admit_waiting(hello.engine)
        else:
            self._admit_rank(event.session, hello)

    def _refusal(self, session: int, hello: attach.Hello) -> Refusal | None:
        if self.draining:
            return Refusal("draining", f"worker {self.settings.node} is about to stop")
        if session in self.book.sessions or session in self.book.waiting:
            return Refusal("busy", f"session {session} has said hello before")
        refusal = admission.version_fault(hello, self.settings.version) or admission.place_fault(
            hello, self.book, self.settings
        )
        if refusal is None and hello.role == "rank":
            engine = self.book.engines.get(hello.engine)
            world = self.worlds.get(hello.fingerprint)
            return admission.rank_fault(hello, engine, world, self.settings)
        return refusal

    def _admit_rank(self, session: int, hello: attach.Hello) -> None:
        engine = self.book.engines.get(hello.engine)
        if engine is None:
            shapes = shapes_of(hello.groups)
            world = self.worlds.enter(hello.fingerprint, hello.model, hello.local_ranks, shapes)
            if world is None:
                limit = self.settings.max_worlds
                self._refuse(session, Refusal("busy", f"{limit} fingerprints have chunks here, the limit"))
                return
            engine = Engine(hello.engine, hello.model, hello.local_ranks, world)
        self._admit(Session(session, "rank", hello.rank, engine), hello)
        self._admit_waiting(hello.engine)

    def _admit_waiting(self, engine_id: str) -> None:
        """Admit a scheduler whose ranks are all there."""
        engine = self.book.engines.get(engine_id)
        waiting = self.book.waiting_for(engine_id)
        if engine is None or waiting is None or not engine.complete:
            return
        del self.book.waiting[waiting.session]
        refusal = admission.scheduler_fault(waiting.hello, engine)
        if refusal is not None:
            self._refuse(waiting.session, refusal)
        else:
            self._admit(Session(waiting.session, "scheduler", 0, engine), waiting.hello)

    def _admit(self, session: Session, hello: attach.Hello) -> None:
        self.book.add(session)
        settings, world = self.settings, session.engine.world
        epoch = self.fence.highest
        welcome = attach.Welcome(
            protocol=min(hello.protocol_max, attach.PROTOCOL_MAX),
            version=settings.version,
            session=session.id,
            boot_id=settings.boot_id,
            worker=settings.node,
            cluster_uid=b"" if epoch is None else epoch.cluster_uid,
            pool_bytes=settings.pool_bytes,
            table_bytes=table_bytes(settings.table_slots),
            groups=[
                attach.GroupGrant(one.group, one.slot_bytes, one.area_stride, one.area_bytes)
                for one in world.classes.values()
            ],
            pin_ttl_ms=int(settings.pin_ttl * 1000),
        )
        self._emit(Accept(session.id, welcome, session.role == "rank"))

    def _refuse(self, session: int, refusal: Refusal) -> None:
        self.counters.add("blockyard_worker_attaches_refused_total", reason=refusal.code)
        self._emit(Send(session, attach.Refused(refusal.code, refusal.detail)))
        self._emit(CloseSession(session, refusal.code))
        self._emit(Unwatch(session))

    def _stop_waiting(self, session: int, reason: str) -> None:
        """A scheduler that waits for its ranks is gone, or says what it may not say yet."""
        if self.book.waiting.pop(session, None) is not None:
            self._emit(CloseSession(session, reason))
            self._emit(Unwatch(session))

    def _session_closed(self, event: events.SessionClosed) -> None:
        self._stop_waiting(event.session, "link is gone")
        session = self.book.live(event.session)
        if session is not None:
            self._close(session)

    def _process_gone(self, event: events.ProcessGone) -> None:
        self._stop_waiting(event.session, "process is gone")
        session = self.book.sessions.get(event.session)
        if session is not None:
            self._end_session(session, "process is gone")

    def _close(self, session: Session) -> None:
        """The socket is gone. Copies go on, and pins stand until their deadline."""
        self.book.close(session)
        if session.role == "rank":
            self.transfers.rank_left(session)
        self._settle(session)

    def _end_session(self, session: Session, reason: str) -> None:
        """Nothing of the session is in flight any more, or ever will be."""
        if session.state is SessionState.LIVE:
            self._emit(CloseSession(session.id, reason))
            self.book.close(session)
            if session.role == "rank":
                self.transfers.rank_left(session)
        self.transfers.end_copies(session)
        if session.role == "scheduler":
            self.transfers.scheduler_left(session)
            self.pinning.scheduler_left(session)
        self._settle(session)

    def _settle(self, session: Session) -> None:
        """Forget a closed session that holds nothing."""
        if session.state is SessionState.CLOSED and session.idle:
            self.book.remove(session)
            self._emit(Unwatch(session.id))

    def _break_off(self, session: Session, fault: str) -> None:
        """The peer does not keep to the protocol: end the session, keep what it may be copying."""
        self.counters.add("blockyard_worker_frames_refused_total", reason="malformed")
        self._emit(Send(session.id, attach.Closing(fault)))
        self._emit(CloseSession(session.id, fault))
        self._close(session)

    def _drain_asked(self, event: events.DrainAsked) -> None:
        self.draining = True
        for waiting in list(self.book.waiting):
            del self.book.waiting[waiting]
            self._refuse(waiting, Refusal("draining", event.reason))
        for session in list(self.book.sessions.values()):
            if session.state is SessionState.LIVE:
                self._emit(Send(session.id, attach.Closing(event.reason)))
                self._emit(CloseSession(session.id, event.reason))
                self._close(session)

    # -- messages of sessions ----------------------------------------------------------------------

    def _received(self, event: events.Received) -> None:
        session = self.book.live(event.session)
        if session is None:
            self._unexpected()
            self._stop_waiting(event.session, "a message before the welcome")
            return
        role, receive = self._receivers.get(type(event.message), ("nobody", self._engine_counters))
        if role and role != session.role:
            kind = type(event.message).__name__
            self._break_off(session, f"{kind} is not a message for a {session.role} that is attached")
            return
        fault = frames.fault(event.message)
        if fault:
            self._break_off(session, fault)
        else:
            receive(session, event.message)

    def _fill(self, session: Session, message: attach.Fill) -> None:
        if message.job in session.engine.jobs:
            self._unexpected()
        else:
            self.transfers.fill(session, message, self.now)

    def _acquire(self, session: Session, message: attach.Acquire) -> None:
        self.pinning.acquire(session, message, self.now)

    def _release(self, session: Session, message: attach.Release) -> None:
        self.pinning.release(session, message)

    def _finish(self, session: Session, message: attach.Finish) -> None:
        self.pinning.finish(session, message)

    def _resolve(self, session: Session, message: attach.Resolve) -> None:
        self.transfers.resolve(session, message, self.now)

    def _done(self, session: Session, message: attach.StoreDone | attach.LoadDone) -> None:
        if not self.transfers.done(session, message):
            self._unexpected()

    def _forget(self, session: Session, message: attach.Forget) -> None:
        self.transfers.forget(session.engine.world.fingerprint)

    def _engine_counters(self, session: Session, message: attach.EngineCounters) -> None:
        """The shell keeps engines' numbers; they decide nothing here."""

    def _bye(self, session: Session, message: attach.Bye) -> None:
        self._end_session(session, "bye")

    def _unexpected(self) -> None:
        self.counters.add("blockyard_worker_frames_refused_total", reason="unexpected")

    # -- checksums, leader, time -------------------------------------------------------------------

    def _checksum_done(self, event: events.ChecksumDone) -> None:
        self.holdings.checked(event.slot, event.generation, event.checksums)

    def _checksum_failed(self, event: events.ChecksumFailed) -> None:
        self.holdings.check_failed(event.slot, event.generation)

    def _link_up(self, event: events.LinkUp) -> None:
        if self.incarnation and self.fence.admit(event.epoch):
            self._publish(self.outbox.link_up(event.expect_seq))
            self._publish(self.outbox.pump(self.holdings.shared()))

    def _link_down(self, event: events.LinkDown) -> None:
        self.outbox.link_down()

    def _link_acked(self, event: events.LinkAcked) -> None:
        self.outbox.acked(event.seq)

    def _resync_asked(self, event: events.ResyncAsked) -> None:
        self._publish(self.outbox.resend(event.from_seq))

    def _incarnated(self, event: events.Incarnated) -> None:
        self.incarnation = event.incarnation
        self.outbox.restart()

    def _tick(self, event: events.Tick) -> None:
        self.pinning.expire(self.now)
        self.transfers.expire(self.now, self.book.sessions)
        for waiting in [one for one in self.book.waiting.values() if one.deadline <= self.now]:
            del self.book.waiting[waiting.session]
            self._refuse(waiting.session, self._ranks_missing(waiting))
        for session in [one for one in self.book.sessions.values() if one.state is SessionState.CLOSED]:
            self._settle(session)
        self._publish(self.outbox.pump(self.holdings.shared()))
        self._publish_stats()

    def _ranks_missing(self, waiting: Waiting) -> Refusal:
        engine = self.book.engines.get(waiting.hello.engine)
        there = 0 if engine is None else len(engine.ranks)
        wanted = waiting.hello.local_ranks
        limit = self.settings.ranks_deadline
        return Refusal("ranks", f"{there} of {wanted} ranks attached within {limit:g} s")

    def _publish(self, messages: list[ToLeader]) -> None:
        if messages:
            self._emit(Publish(messages))

    def _publish_stats(self) -> None:
        if self.outbox.linked and self.now >= self._stats_due:
            self._stats_due = self.now + self.settings.stats_interval
            self._publish([stats(self)])

    def _emit(self, instruction: Instruction) -> None:
        self._out.append(instruction)
