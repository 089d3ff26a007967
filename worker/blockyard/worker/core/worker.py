"""The machine: one event in, the instructions that follow from it out.

    handle(now, event) -> list[Instruction]     in the order of execution; no clock, no I/O, no threads
    validate()                                  raises InvariantBroken when the books do not agree

Owns the parts and which of them acts on which event. Must never know sockets, files or etcd. What steps are
made of: attachments (sessions), pinning (what requests may load), reservations (what is being stored), transfers
(copies), outbox (what the leader is told); all of them move chunks and slots through holdings alone.
"""

from collections.abc import Callable
from typing import Any

from blockyard.common.fencing import EpochFence
from blockyard.common.identity import Key
from blockyard.common.messages import attach
from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.spec import Part
from blockyard.worker.core import events, frames, invariants
from blockyard.worker.core.attachments import Attachments
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.tier import DiskTier
from blockyard.worker.core.gauges import show, stats
from blockyard.worker.core.hints import HintBook
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction, Publish, ToLeader
from blockyard.worker.core.orders import Orders
from blockyard.worker.core.outbox import Outbox
from blockyard.worker.core.peers import wire as peer_wire
from blockyard.worker.core.peers.tier import PeerTier
from blockyard.worker.core.pinning import Pinning
from blockyard.worker.core.pins import GrantBook
from blockyard.worker.core.policies.base import EvictionPolicy
from blockyard.worker.core.policies.lru import LeastRecentlyUsed
from blockyard.worker.core.reservations import Reservations
from blockyard.worker.core.searching import Searching
from blockyard.worker.core.sessions import Session, SessionBook
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.story import Transition
from blockyard.worker.core.transfers import Transfers
from blockyard.worker.core.worlds import WorldBook


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
        self.disk = DiskTier(
            settings.disk,
            settings.pool_bytes,
            self.counters,
            self.holdings,
            self.worlds,
            self._emit,
            self._read_ended,
        )
        self.peers = PeerTier(
            settings.peers,
            settings.pool_bytes,
            self.counters,
            self.holdings,
            self.worlds,
            self.disk,
            self._emit,
            self._read_ended,
        )
        searching = Searching(self.holdings, self.disk.promoting, self.peers)
        self.pinning = Pinning(settings, self.counters, self.holdings, self.grants, searching, self.peers, self._emit)
        self.reservations = Reservations(settings, self.counters, self.holdings, self.disk, self.peers)
        self.orders = Orders(
            self.counters, self.holdings, self.worlds, self.disk, self.peers, self.reservations, self._emit
        )
        self.transfers = Transfers(settings, self.counters, self.holdings, self.grants, self.reservations, self._emit)
        self.book = SessionBook()
        self.hints = HintBook(self.book, self.counters, settings.max_hints_per_session)
        self.fence = EpochFence()
        self.attachments = Attachments(
            settings,
            self.counters,
            self.book,
            self.worlds,
            self.reservations,
            self.transfers,
            self.pinning,
            self.disk,
            self.fence,
            self._emit,
        )
        self.incarnation = 0
        self._deltas_due = 0.0
        self._stats_due = 0.0
        self._digests_due = 0.0
        self._handlers = self._event_handlers()
        self._receivers = self._message_receivers()

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
            self.reservations.fills.next_deadline(),
            self.book.next_deadline(),
            self.pinning.waiting.next_deadline(),
            self.disk.next_deadline(),
            self.peers.next_deadline(),
            self.orders.next_deadline(),
            self._deltas_due if self.outbox.can_send else None,
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
        self.attachments.asked(event.session, event.hello, self.now)

    def _session_closed(self, event: events.SessionClosed) -> None:
        self.attachments.link_lost(event.session)

    def _process_gone(self, event: events.ProcessGone) -> None:
        self.attachments.process_gone(event.session)

    def _drain_asked(self, event: events.DrainAsked) -> None:
        self.attachments.drain(event.reason)

    # -- messages of sessions ----------------------------------------------------------------------

    def _received(self, event: events.Received) -> None:
        session = self.book.live(event.session)
        if session is None:
            self._unexpected()
            self.attachments.stop_waiting(event.session, "a message before the welcome")
            return
        role, receive = self._receivers.get(type(event.message), ("nobody", self._engine_counters))
        if role and role != session.role:
            kind = type(event.message).__name__
            self.attachments.break_off(session, f"{kind} is not a message for a {session.role} that is attached")
            return
        fault = frames.fault(event.message)
        if fault:
            self.attachments.break_off(session, fault)
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
        self.hints.finished(session, message.request)

    def _resolve(self, session: Session, message: attach.Resolve) -> None:
        self.transfers.resolve(session, message, self.now)

    def _done(self, session: Session, message: attach.StoreDone | attach.LoadDone) -> None:
        if not self.transfers.done(session, message):
            self._unexpected()

    def _forget(self, session: Session, message: attach.Forget) -> None:
        self.reservations.forget(session.engine.world.fingerprint)

    def _engine_counters(self, session: Session, message: attach.EngineCounters) -> None:
        """The shell keeps engines' numbers; they decide nothing here."""

    def _bye(self, session: Session, message: attach.Bye) -> None:
        self.attachments.end(session, "bye")

    def _unexpected(self) -> None:
        self.counters.add("blockyard_worker_frames_refused_total", reason="unexpected")

    # -- checksums, leader, time -------------------------------------------------------------------

    def _checksum_done(self, event: events.ChecksumDone) -> None:
        self.holdings.checked(event.slot, event.generation, event.checksums)
        self.disk.pump(self.now)

    def _checksum_failed(self, event: events.ChecksumFailed) -> None:
        self.holdings.check_failed(event.slot, event.generation)

    def _link_up(self, event: events.LinkUp) -> None:
        if self.incarnation and self.fence.admit(event.epoch, event.history):
            self._digests_due = self.now + self.settings.digest_interval
            self.peers.link_up()
            self.orders.link_up(event.epoch)
            self._publish(self.outbox.link_up(event.expect_seq))
            self._publish_holdings()

    def _link_down(self, event: events.LinkDown) -> None:
        self.outbox.link_down()
        self.peers.link_down(self.now)

    def _link_acked(self, event: events.LinkAcked) -> None:
        self.outbox.acked(event.seq)

    def _resync_asked(self, event: events.ResyncAsked) -> None:
        self._publish(self.outbox.resend(event.from_seq))

    def _snapshot_credited(self, event: events.SnapshotCredited) -> None:
        self.outbox.credited(event.seq, event.parts)
        self._publish(self.outbox.pump_snapshot())

    def _repair_asked(self, event: events.RepairAsked) -> None:
        self.outbox.repair(event.buckets)
        self._publish_holdings()

    def _ordered(self, event: peer_wire.Ordered) -> None:
        """Whoever has no link whose epoch was admitted gives no orders."""
        if self.outbox.linked:
            self.orders.ordered(event.order, self.now)

    def _incarnated(self, event: events.Incarnated) -> None:
        self.incarnation = event.incarnation
        self.outbox.restart()
        self.peers.link_down(self.now)

    def _tick(self, event: events.Tick) -> None:
        self.pinning.expire(self.now)
        self.reservations.expire(self.now)
        self.transfers.expire(self.now, self.book.sessions)
        self.attachments.expire(self.now)
        self.disk.tick(self.now)
        self.peers.tick(self.now)
        self.orders.tick(self.now)
        if self.now >= self._deltas_due:
            self._publish_holdings()
        else:
            self._publish(self.outbox.pump_snapshot())
        self._publish_digests()
        self._publish_stats()

    def _read_ended(self, number: int, well: bool) -> None:
        """A read from disk, a fetch from a peer or a question about one is over."""
        self.pinning.read_ended(number, well, self.now)
        self.peers.serving.read_ended(number)
        self.orders.read_ended(number, well, self.now)

    def _publish(self, messages: list[ToLeader]) -> None:
        if messages:
            self._emit(Publish(messages))

    def _publish_holdings(self) -> None:
        """All that may be sent; changes from now on wait for `delta_interval`."""
        self._deltas_due = self.now + self.settings.delta_interval
        self._publish(self.outbox.pump())

    def _publish_digests(self) -> None:
        """Those that are due go out as soon as nothing waits; until something changes they are not sent again."""
        if self.now >= self._digests_due and (digests := self.outbox.digests()) is not None:
            self._digests_due = self.now + self.settings.digest_interval
            self._publish([digests])

    def _publish_stats(self) -> None:
        if self.outbox.linked and self.now >= self._stats_due:
            self._stats_due = self.now + self.settings.stats_interval
            self._publish([stats(self)])

    def _emit(self, instruction: Instruction) -> None:
        self._out.append(instruction)

    # -- who handles what --------------------------------------------------------------------------------

    def _event_handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
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
            events.SnapshotCredited: self._snapshot_credited,
            events.RepairAsked: self._repair_asked,
            events.Incarnated: self._incarnated,
            events.DrainAsked: self._drain_asked,
            events.Tick: self._tick,
            wire.DiskWritten: lambda event: self.disk.written(self.now, event),
            wire.DiskRead: lambda event: self.disk.read(self.now, event),
            wire.DiskFailed: lambda event: self.disk.failed(self.now, event),
            wire.DiskReclaimed: lambda event: self.disk.reclaimed(self.now, event),
            wire.DiskProbed: lambda event: self.disk.probed(self.now, event),
            wire.DiskFound: lambda event: self.disk.found(self.now, event),
            peer_wire.PeersKnown: self.peers.known,
            peer_wire.Located: lambda event: self.peers.located(event, self.now),
            peer_wire.Ordered: self._ordered,
            peer_wire.PeerRead: lambda event: self.peers.read(event, self.now),
            peer_wire.PeerFailed: lambda event: self.peers.failed(event, self.now),
            peer_wire.PeerAsked: lambda event: self.peers.asked(event, self.now),
            peer_wire.PeerServed: self.peers.served,
            peer_wire.PeerSessionClosed: self.peers.session_closed,
        }

    def _message_receivers(self) -> dict[type, tuple[str, Callable[[Session, Any], None]]]:
        """By message: the role that may send it ("" for both), and what receives it."""
        return {
            attach.Hints: ("scheduler", self.hints.take),
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
