"""One worker: the production core, the slot table that its instructions make, and its link to a leader.

Owns the order in which production's shell carries instructions out, and their wording. Every event is followed by a
check of all invariants. Checksums wait until a scenario lets them be computed. Sizes for people (WorkerStats) decide
nothing and are left out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from blockyard.common.fencing import Epoch
from blockyard.common.messages import attach, cluster
from blockyard.common.slot_table import SlotRecord
from blockyard.worker.core import events, instructions
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.worker import WorkerCore
from scenarios import words
from scenarios.counts import Counts
from scenarios.engine_side import Process, received, told

if TYPE_CHECKING:
    from scenarios.links import Link
    from scenarios.world import World

_COUNTED = (
    "evictions",
    "fills_refused",
    "fills_dropped",
    "loads_refused",
    "loads_failed",
    "quarantined",
    "frames_refused",
    "hints_dropped",
    "outbox_dropped",
)


class Worker:
    """One life of a worker. `link` is the one it opened last, until it knows that it is over."""

    def __init__(self, world: World, name: str, settings: CoreSettings) -> None:
        self._world = world
        self.name = name
        self.core = WorkerCore(settings)
        self.paused = False
        self.table: dict[int, SlotRecord] = {}
        self.to_check: list[instructions.ComputeChecksum] = []
        self.sessions: dict[int, Process] = {}
        """Whose process is watched."""
        self.link: Link | None = None
        self.uid = b""
        self.history = 0
        self._last_session = 0
        self._events: deque[events.Event] = deque()
        self._pinned: set[tuple[int, bytes]] = set()
        self._counts = Counts(self.core.counters, "blockyard_worker_", _COUNTED)

    def feed(self, event: events.Event) -> None:
        """One event, and those that its instructions cause."""
        self._events.append(event)
        while self._events:
            done = self.core.handle(self._world.now, self._events.popleft())
            self.core.validate()
            self._carry_out(done)

    def introduce(self, process: Process, previous: tuple[int, bytes]) -> None:
        """A process says hello, and names the session that it had before."""
        decoded = received(process.hello(previous))
        self._last_session += 1
        self.sessions[self._last_session] = process
        assert isinstance(decoded, attach.Hello)
        self.feed(events.AttachAsked(self._last_session, decoded))

    def hear(self, process: Process, message: attach.FromEngine) -> None:
        """A process sends a message."""
        self.feed(events.Received(process.welcomed[0], received(message)))

    def watched(self, process: Process) -> list[int]:
        """Sessions by which this worker would hear of the process's end."""
        return [number for number, one in self.sessions.items() if one is process]

    # -- instructions ------------------------------------------------------------------------------

    def _carry_out(self, done: list[instructions.Instruction]) -> None:
        hashes: list[str] = []
        for instruction in done:
            if isinstance(instruction, instructions.ComputeChecksum):
                self.to_check.append(instruction)
                hashes.append(self._world.names.of(self.table[instruction.slot].key))
            elif isinstance(instruction, instructions.WriteSlot):
                self.table[instruction.slot] = instruction.record
                self._say(" slots:", words.record(instruction.slot, instruction.record, self._world.names))
            else:
                self._carry_out_one(instruction)
        if hashes:
            self._say(" hashes", " ".join(hashes))

    def _carry_out_one(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Accept(session, message):
                process = self.sessions[session]
                process.hear(told(message), self._world.names)
                self._say(" welcomes", f"{process.name} as session {session}")
            case instructions.Send(session, message):
                process = self.sessions[session]
                heard = process.hear(told(message), self._world.names)
                self._say(f" tells {self._session(session)}:", heard)
            case instructions.CloseSession(session, reason):
                self._say(" closes", f"{self._session(session)} ({reason})")
                self._events.append(events.SessionClosed(session))
            case instructions.Unwatch(session):
                self._say(" forgets", self._session(session))
                del self.sessions[session]
            case instructions.Publish(messages):
                self._publish([one for one in messages if not isinstance(one, cluster.WorkerStats)])

    def _publish(self, messages: list[instructions.ToLeader]) -> None:
        link = self.link
        if link is None or not link.live:
            return
        for message in messages:
            self._say(f" sends {link.leader}:", words.message(message, self._world.names))
            link.send(True, message)

    def _session(self, number: int) -> str:
        """The process's name, for the session that it has; a session that was refused or replaced by its number."""
        process = self.sessions[number]
        current, boot = process.welcomed
        if number == current and boot == self.core.settings.boot_id:
            return process.name
        return f"{process.name}'s session {number}"

    # -- the link ----------------------------------------------------------------------------------

    def hello(self) -> cluster.WorkerHello:
        """What it says first on a new link."""
        settings = self.core.settings
        return cluster.WorkerHello(
            protocol_min=cluster.PROTOCOL_MIN,
            protocol_max=cluster.PROTOCOL_MAX,
            version=settings.version,
            cluster=self._world.cluster,
            cluster_uid=self.uid,
            node=self.name,
            boot_id=settings.boot_id,
            incarnation=self.core.incarnation,
            next_seq=self.core.next_seq,
        )

    def heard(self, link: Link, message: cluster.ToWorker) -> None:
        """A message of a link was delivered; one that this worker has given up is not listened to."""
        if link is not self.link:
            return
        match message:
            case cluster.LinkWelcome():
                self._welcomed(link, Epoch(message.cluster_uid, message.epoch), message.expect_seq)
            case cluster.LinkRefused():
                self.lost(link)
            case cluster.Ack(seq) if link.live:
                self.feed(events.LinkAcked(seq))
            case cluster.Resync(from_seq) if link.live:
                self.feed(events.ResyncAsked(from_seq))
            case cluster.SnapshotCredit(seq, parts) if link.live:
                self.feed(events.SnapshotCredited(seq, parts))
            case cluster.Repair(buckets) if link.live:
                self.feed(events.RepairAsked(buckets))

    def _welcomed(self, link: Link, epoch: Epoch, expect_seq: int) -> None:
        """As production's link does: no leader of other data than etcd's, none below the highest epoch."""
        link.live = epoch.cluster_uid == self.uid
        if link.live:
            self.feed(events.LinkUp(epoch, expect_seq, self.history))
        if not self.core.outbox.linked:
            highest = self.core.fence.highest
            known = f"epoch {highest.number}" if highest and highest.cluster_uid == self.uid else "another cluster uid"
            self._say("", f"will not have {link.leader}: it speaks for epoch {epoch.number}, {self.name} knows {known}")
            self.lost(link)

    def lost(self, link: Link) -> None:
        """This end notices, or decides, that the link is over."""
        link.worker_open = False
        if link is self.link:
            self.link = None
            if link.live:
                link.live = False
                self.feed(events.LinkDown())

    # -- what is said after each command -------------------------------------------------------------

    def observe(self) -> None:
        """Say whose pins have come or gone, and which counters have moved."""
        pinned = {(slot, chunk.key) for slot, chunk in self.core.holdings.owners.items() if chunk.pins}
        for verb, places in (("pins", pinned - self._pinned), ("unpins", self._pinned - pinned)):
            if places:
                self._say(f" {verb}", self._world.names.listed(key for _, key in sorted(places)))
        self._pinned = pinned
        for count in self._counts.moved():
            self._say(" counts:", count)

    def slots(self) -> list[str]:
        """Every slot that is not free: as the table shows it, who uses it, and what is filled of it."""
        lines = []
        for slot, chunk in sorted(self.core.holdings.owners.items()):
            told = words.record(slot, self.table[slot], self._world.names)
            used = [f"{name} {count}" for name, count in (("pins", chunk.pins), ("copiers", chunk.copiers)) if count]
            if chunk.job is not None:
                used.append(f"filled by {chunk.parts.bit_count()} of {chunk.size_class.areas}")
            lines.append(", ".join([told, *used]))
        return lines or ["all free"]

    def _say(self, head: str, item: str) -> None:
        self._world.say(f"{self.name}{head}", item)
