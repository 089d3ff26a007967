"""The coming and going of sessions: who is admitted, and what ends with a link, a process or a farewell.

Owns the order of these steps. Must never know what the sessions' messages mean.
"""

from collections.abc import Callable

from blockyard.common.fencing import EpochFence
from blockyard.common.messages import attach
from blockyard.common.metrics.counters import Counters
from blockyard.common.slot_table import table_bytes
from blockyard.worker.core import admission
from blockyard.worker.core.admission import Refusal
from blockyard.worker.core.disk.tier import DiskTier
from blockyard.worker.core.instructions import Accept, CloseSession, Instruction, Send, Unwatch
from blockyard.worker.core.pinning import Pinning
from blockyard.worker.core.reservations import Reservations
from blockyard.worker.core.sessions import Engine, Session, SessionBook, SessionState, Waiting
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.transfers import Transfers
from blockyard.worker.core.worlds import WorldBook, shapes_of


class Attachments:
    """Lets sessions in and out. Each method is one step of the machine."""

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        book: SessionBook,
        worlds: WorldBook,
        reservations: Reservations,
        transfers: Transfers,
        pinning: Pinning,
        disk: DiskTier,
        fence: EpochFence,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._book = book
        self._worlds = worlds
        self._reservations = reservations
        self._transfers = transfers
        self._pinning = pinning
        self._disk = disk
        self._fence = fence
        self._emit = emit
        self._draining = False

    def asked(self, session: int, hello: attach.Hello, now: float) -> None:
        """A process said hello: admit it, refuse it, or let a scheduler wait for its ranks."""
        previous = self._book.previous(hello, self._settings.boot_id)
        if previous is not None:
            self.end(previous, "replaced by a new session of the same process")
        refusal = self._refusal(session, hello)
        if refusal is not None:
            self._refuse(session, refusal)
        elif hello.role == "scheduler":
            self._book.waiting[session] = Waiting(session, hello, now + self._settings.ranks_deadline)
            self._admit_waiting(hello.engine)
        else:
            self._admit_rank(session, hello)

    def _refusal(self, session: int, hello: attach.Hello) -> Refusal | None:
        if self._draining:
            return Refusal("draining", f"worker {self._settings.node} is about to stop")
        if session in self._book.sessions or session in self._book.waiting:
            return Refusal("busy", f"session {session} has said hello before")
        refusal = admission.version_fault(hello, self._settings.version) or admission.place_fault(
            hello, self._book, self._settings
        )
        if refusal is None and hello.role == "rank":
            engine = self._book.engines.get(hello.engine)
            world = self._worlds.get(hello.fingerprint)
            return admission.rank_fault(hello, engine, world, self._settings)
        return refusal

    def _admit_rank(self, session: int, hello: attach.Hello) -> None:
        engine = self._book.engines.get(hello.engine)
        if engine is None:
            shapes = shapes_of(hello.groups)
            world = self._worlds.enter(hello.fingerprint, hello.model, hello.local_ranks, shapes)
            if world is None:
                limit = self._settings.max_worlds
                self._refuse(session, Refusal("busy", f"{limit} fingerprints have chunks here, the limit"))
                return
            self._disk.disown(world)
            engine = Engine(hello.engine, hello.model, hello.local_ranks, world)
        self._admit(Session(session, "rank", hello.rank, engine), hello)
        self._admit_waiting(hello.engine)

    def _admit_waiting(self, engine_id: str) -> None:
        """Admit a scheduler whose ranks are all there."""
        engine = self._book.engines.get(engine_id)
        waiting = self._book.waiting_for(engine_id)
        if engine is None or waiting is None or not engine.complete:
            return
        del self._book.waiting[waiting.session]
        refusal = admission.scheduler_fault(waiting.hello, engine)
        if refusal is not None:
            self._refuse(waiting.session, refusal)
        else:
            self._admit(Session(waiting.session, "scheduler", 0, engine), waiting.hello)

    def _admit(self, session: Session, hello: attach.Hello) -> None:
        self._book.add(session)
        settings, world = self._settings, session.engine.world
        epoch = self._fence.highest
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
        self._counters.add("blockyard_worker_attaches_refused_total", reason=refusal.code)
        self._emit(Send(session, attach.Refused(refusal.code, refusal.detail[: attach.MAX_TEXT])))
        self._emit(CloseSession(session, refusal.code))
        self._emit(Unwatch(session))

    def stop_waiting(self, session: int, reason: str) -> None:
        """A scheduler that waits for its ranks is gone, or says what it may not say yet."""
        if self._book.waiting.pop(session, None) is not None:
            self._emit(CloseSession(session, reason))
            self._emit(Unwatch(session))

    def link_lost(self, number: int) -> None:
        """The session's socket is gone. Copies go on, and pins stand until their deadline."""
        self.stop_waiting(number, "link is gone")
        session = self._book.live(number)
        if session is not None:
            self._close(session)

    def process_gone(self, number: int) -> None:
        """The session's process is dead."""
        self.stop_waiting(number, "process is gone")
        session = self._book.sessions.get(number)
        if session is not None:
            self.end(session, "process is gone")

    def _close(self, session: Session) -> None:
        self._book.close(session)
        if session.role == "rank":
            self._transfers.rank_left(session)
        else:
            self._pinning.stop_waiting(session)
        self._settle(session)

    def end(self, session: Session, reason: str) -> None:
        """Nothing of the session is in flight any more, or ever will be."""
        if session.state is SessionState.LIVE:
            self._emit(CloseSession(session.id, reason))
            self._book.close(session)
            if session.role == "rank":
                self._transfers.rank_left(session)
        self._transfers.end_copies(session)
        if session.role == "scheduler":
            self._reservations.scheduler_left(session)
            self._pinning.scheduler_left(session)
        self._settle(session)

    def _settle(self, session: Session) -> None:
        """Forget a closed session that holds nothing."""
        if session.state is SessionState.CLOSED and session.idle:
            self._book.remove(session)
            self._emit(Unwatch(session.id))

    def break_off(self, session: Session, fault: str) -> None:
        """The peer does not keep to the protocol: end the session, keep what it may be copying."""
        self._counters.add("blockyard_worker_frames_refused_total", reason="malformed")
        self._emit(Send(session.id, attach.Closing(fault[: attach.MAX_TEXT])))
        self._emit(CloseSession(session.id, fault))
        self._close(session)

    def drain(self, reason: str) -> None:
        """End every session, and admit no more."""
        self._draining = True
        for waiting in list(self._book.waiting):
            del self._book.waiting[waiting]
            self._refuse(waiting, Refusal("draining", reason))
        for session in list(self._book.sessions.values()):
            if session.state is SessionState.LIVE:
                self._emit(Send(session.id, attach.Closing(reason)))
                self._emit(CloseSession(session.id, reason))
                self._close(session)

    def expire(self, now: float) -> None:
        """Refuse schedulers whose ranks did not come, and forget closed sessions that hold nothing any more."""
        for waiting in [one for one in self._book.waiting.values() if one.deadline <= now]:
            del self._book.waiting[waiting.session]
            self._refuse(waiting.session, self._ranks_missing(waiting))
        for session in [one for one in self._book.sessions.values() if one.state is SessionState.CLOSED]:
            self._settle(session)

    def _ranks_missing(self, waiting: Waiting) -> Refusal:
        engine = self._book.engines.get(waiting.hello.engine)
        there = 0 if engine is None else len(engine.ranks)
        wanted = waiting.hello.local_ranks
        limit = self._settings.ranks_deadline
        return Refusal("ranks", f"{there} of {wanted} ranks attached within {limit:g} s")
