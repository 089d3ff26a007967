"""The named invariants, checked from outside against what really is in memory. Owns the checks; changes nothing.

The cores' own `validate` runs after every event that did something, and after every eighth idle tick: it costs more
than the event itself, and an idle tick changes little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockyard.common.codec import FrameRefused
from blockyard.common.fencing import Epoch
from blockyard.common.messages import attach, cluster
from blockyard.common.messages.states import KeyState
from blockyard.common.slot_table import PAGE, SlotRecord, SlotState
from blockyard.leader.core import events as leader_events
from blockyard.leader.core import instructions as leader_instructions
from blockyard.worker.core import events, instructions
from blockyard.worker.core.hints import Hints
from sim.violation import Violation

if TYPE_CHECKING:
    from sim.leader_node import LeaderNode
    from sim.worker_node import WorkerNode

_IDLE_TICKS = 8


class WorkerChecks:
    """What must hold at one worker."""

    def __init__(self, worker: WorkerNode) -> None:
        self._worker = worker
        self._highest: dict[tuple[int, bytes], int] = {}
        self._idle = 0

    def after(self, event: events.Event, done: list[instructions.Instruction]) -> None:
        """The core's own books, and what requests said of themselves."""
        if isinstance(event, events.Received) and isinstance(event.message, attach.Hints | attach.Finish):
            self._are_as_told(event.session, event.message)
        if isinstance(event, events.Tick) and not done:
            self._idle += 1
            if self._idle % _IDLE_TICKS:
                return
        self._worker.core.validate()

    def _are_as_told(self, session: int, message: attach.Hints | attach.Finish) -> None:
        """hints-as-told: what is kept is what the requests said, and nothing of one that is over."""
        worker = self._worker
        live = worker.core.book.live(session)
        if isinstance(message, attach.Hints) and worker.speaks < attach.HINTS_SINCE:
            raise Violation("versions-meet", f"{worker.node} speaks protocol {worker.speaks} and is sent hints")
        if live is None:
            return
        if isinstance(message, attach.Finish) and message.request in live.hints:
            raise Violation("hints-as-told", f"{worker.node} keeps hints of {message.request}, which is over")
        engines = [one for one in worker.world.engines if one.scheduler.process is worker.watched[session]]
        for request, kept in live.hints.items() if engines else ():
            said = engines[0].scheduler.said.get(request)
            if said is None or Hints.of(said) != kept:
                raise Violation("hints-as-told", f"{worker.node} keeps {kept} of {request}, which said {said}")

    def before_write(self, slot: int, record: SlotRecord) -> None:
        """no-reuse-while-pinned and commit-before-visible, in the memory itself."""
        memory = self._worker.memory
        reused = record.state in (SlotState.FREE, SlotState.FILLING)
        if reused and slot in memory.copying and slot not in memory.distrusted:
            old = memory.record(slot)
            what = f"slot {slot} becomes {record.state.name} while {memory.copying[slot]} copies touch it"
            raise Violation("no-reuse-while-pinned", f"{self._worker.node}: {what}", old.key)
        if record.state is SlotState.READY:
            self._is_whole(record, "is shown as ready")
            self._worker.world.numbers["commits checked"] += 1

    def before_send(self, message: object) -> None:
        """commit-before-visible once more: whatever is granted is whole at that moment."""
        if not isinstance(message, attach.Grant) or not message.grant:
            return
        grant = self._worker.core.grants.grants.get(message.grant)
        hits = message.states.count(KeyState.HIT)
        if grant is None or not hits:
            raise Violation("every-pin-owned-and-dated", f"{self._worker.node}: grant {message.grant} pins nothing")
        for chunk in grant.chunks.values():
            record = self._worker.memory.record(chunk.slot)
            if record.key != chunk.key or record.generation != chunk.generation:
                raise Violation("no-reuse-while-pinned", f"slot {chunk.slot} is not its chunk's", chunk.key)
            self._is_whole(record, "is granted")
        self._worker.world.numbers["hits granted"] += hits

    def linked(self, epoch: Epoch, history: int) -> None:
        """epoch-monotone, within one uid and one history of etcd as far as it could tell."""
        if history >= self._worker.world.etcd.timeline:
            raise Violation(
                "epoch-monotone", f"{self._worker.node} counts {history} histories of etcd, more than there were"
            )
        place = (history, epoch.cluster_uid)
        highest = self._highest.get(place, 0)
        if epoch.number < highest:
            raise Violation("epoch-monotone", f"{self._worker.node} obeys epoch {epoch.number} after {highest}")
        self._highest[place] = epoch.number
        self._worker.world.numbers["leader links"] += 1

    def turned_away(self, answer: object) -> None:
        if isinstance(answer, cluster.LinkRefused):
            self._worker.world.numbers[f"links refused: {answer.code}"] += 1

    def refused(self, error: FrameRefused) -> None:
        raise Violation("frames-understood", f"{self._worker.node}: {error}")

    def _is_whole(self, record: SlotRecord, what: str) -> None:
        memory = self._worker.memory
        for rank in range(record.areas):
            start = record.offset + rank * record.area_stride
            if start // PAGE in memory.rotten:
                continue
            if not memory.holds(start, record.area_bytes, record.key, rank):
                detail = f"{self._worker.node}: {record.key.hex()[:8]} {what}, rank {rank} has not filled its area"
                raise Violation("commit-before-visible", detail, record.key)


class LeaderChecks:
    """What must hold at one leader."""

    def __init__(self, leader: LeaderNode) -> None:
        self._leader = leader
        self._idle = 0

    def after(self, event: leader_events.Event, done: list[leader_instructions.Instruction]) -> None:
        """The core's own books, and incarnation-scoped-claims at each welcome."""
        for one in done:
            if isinstance(one, leader_instructions.SendTo) and isinstance(one.message, cluster.LinkWelcome):
                self._is_current(one.link)
            if isinstance(one, leader_instructions.NoteDrift):
                self._has_drifted(one)
        if isinstance(event, leader_events.Tick) and not done:
            self._idle += 1
            if self._idle % _IDLE_TICKS:
                return
        self._leader.core.validate()

    def leads(self, epoch: Epoch) -> None:
        """One leader at a time, unless the key was taken out of its hands."""
        world = self._leader.world
        for other in world.leaders.values():
            if other is self._leader or not other.sure() or other.core.epoch is None:
                continue
            if other.core.epoch.cluster_uid == epoch.cluster_uid and world.clock.now > world.election_disturbed_until:
                raise Violation("one-leader", f"{self._leader.name} and {other.name} lead at once")
        world.numbers["elections"] += 1

    def refused(self, error: FrameRefused) -> None:
        raise Violation("frames-understood", f"{self._leader.name}: {error}")

    def _has_drifted(self, note: leader_instructions.NoteDrift) -> None:
        """index-converges, without help: digests differ only where a fault made the index wrong."""
        if note.node not in self._leader.drifted:
            detail = f"{self._leader.name} differs from {note.node} in buckets {note.buckets}, though nobody made it"
            raise Violation("index-converges", detail)
        self._leader.world.numbers["drifts noticed"] += 1

    def _is_current(self, link: int) -> None:
        side = self._leader.links.get(link)
        if side is None or side.hello is None:
            return
        hello = side.hello
        member = self._leader.core.members.by_node[hello.node]
        if hello.incarnation != member.incarnation:
            detail = f"{hello.node} is welcome with incarnation {hello.incarnation}, registered is {member.incarnation}"
            raise Violation("incarnation-scoped-claims", detail)
        low, high = hello.protocol_min, hello.protocol_max
        if low > cluster.PROTOCOL_MAX or high < cluster.PROTOCOL_MIN:
            raise Violation("versions-meet", f"{hello.node} is welcome with protocol {low} to {high}")
