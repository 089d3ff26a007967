"""A worker process around the production WorkerCore. Owns the order in which events go in and instructions are carried
out, as production's shell, attach server and checksum threads do; decides nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach, cluster
from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.spec import Part
from blockyard.worker.core import events, instructions
from blockyard.worker.core.peers import wire as peers
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.worker import WorkerCore
from sim.checks import WorkerChecks
from sim.disk_side import DiskSide, SimDisk
from sim.memory import Memory
from sim.peer_side import PeerSide
from sim.process import Process
from sim.worker_link import WorkerLink

if TYPE_CHECKING:
    from sim.world import World

_LONGEST_TICK = 0.1
_SHORTEST_TICK = 0.001
_STALL = 1.0


@dataclass
class ChecksumTrouble:
    """How checksums go for a while: later, or not at all."""

    delay: float = 0.0005
    failing: bool = False


@dataclass
class WorkerNode:
    """One life of a worker: a new boot id, an empty pool."""

    world: World
    node: str
    machine: str
    process: Process
    settings: CoreSettings
    disks: list[SimDisk] = field(default_factory=list)
    protocol: tuple[int, int] = (cluster.PROTOCOL_MIN, cluster.PROTOCOL_MAX)
    """To leaders."""
    speaks: int = attach.PROTOCOL_MAX
    """To engines, at most."""
    checksums: ChecksumTrouble = field(default_factory=ChecksumTrouble)

    def __post_init__(self) -> None:
        settings, world = self.settings, self.world
        self.counters = Counters(Part.WORKER)
        self.core = WorkerCore(settings, self.counters)
        self.memory = Memory(settings.boot_id, settings.table_slots, settings.pool_bytes, settings.slab_bytes)
        self.checks = WorkerChecks(self)
        self.links: dict[int, EngineSide] = {}
        self.watched: dict[int, Process] = {}
        self.numbers = itertools.count(1)
        self.draw = world.streams.of(f"worker/{self.process.name}")
        self.peers = PeerSide(self)
        self.link = WorkerLink(self)
        self.disk_side = DiskSide(self, self.disks)
        self._events: deque[events.Event] = deque()
        self._busy = False
        self._waiting: dict[int, instructions.ComputeChecksum] = {}
        self._last_tick = 0.0
        world.network.listen(f"unix:{self.machine}", self.process, lambda: EngineSide(self))
        self.process.spawn(self._tick())
        self.link.start()

    def feed(self, event: events.Event) -> None:
        """One event; what it causes comes after it."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        while self._events:
            one = self._events.popleft()
            done = self.core.handle(self.process.clock.now, one)
            for instruction in done:
                self._execute(instruction)
            self.checks.after(one, done)
        self._busy = False

    def progresses(self) -> bool:
        return self.process.clock.now - self._last_tick < _STALL

    async def _tick(self) -> None:
        while True:
            self.feed(events.Tick())
            now = self._last_tick = self.process.clock.now
            deadline = self.core.next_deadline()
            due = _LONGEST_TICK if deadline is None else max(_SHORTEST_TICK, deadline - now)
            await self.process.sleep(min(_LONGEST_TICK, due))

    def _execute(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Send(session, message):
                self._send(session, message)
            case instructions.WriteSlot(slot, record):
                self.checks.before_write(slot, record)
                self.memory.write(slot, record)
            case instructions.ComputeChecksum():
                self._hash_later(instruction)
            case instructions.Publish(messages):
                self.link.publish(messages)
            case instructions.Accept(session, message, with_memory):
                if session in self.links:
                    self.links[session].welcome(message, self.memory if with_memory else None)
            case instructions.CloseSession(session, reason):
                if session in self.links:
                    self.links[session].close(reason)
            case instructions.Unwatch(session):
                self.watched.pop(session, None)
            case peers.FetchChunks() | peers.CancelFetches() | peers.ServeChunks():
                self.peers.execute(instruction)
            case _:
                self.disk_side.execute(instruction)

    def _send(self, session: int, message: msgspec.Struct) -> None:
        self.checks.before_send(message)
        if session in self.links:
            self.links[session].tell(message)

    # Checksum threads: one request waits per slot, answers come in any order.

    def _hash_later(self, order: instructions.ComputeChecksum) -> None:
        older = self._waiting.pop(order.slot, None)
        self._waiting[order.slot] = order
        if older is not None:
            failed = events.ChecksumFailed(older.slot, older.generation, "the slot has a new owner")
            self.process.after(0.0, lambda: self.feed(failed))
        self.process.after(self.checksums.delay * (0.2 + self.draw.expovariate(1)), lambda: self._hash(order))

    def _hash(self, order: instructions.ComputeChecksum) -> None:
        if self._waiting.get(order.slot) is not order:
            return
        del self._waiting[order.slot]
        if self.checksums.failing:
            self.feed(events.ChecksumFailed(order.slot, order.generation, "hashing failed"))
            return
        starts = [order.offset + i * order.area_stride for i in range(order.areas)]
        sums = tuple(self.memory.hash_area(start, order.area_bytes) for start in starts)
        self.feed(events.ChecksumDone(order.slot, order.generation, sums))

    # The attach server.

    def introduce(self, link: EngineSide, hello: attach.Hello, peer: Process) -> int:
        """A whole Hello has come: from here on its process is watched."""
        session = next(self.numbers)
        self.links[session] = link
        self.watched[session] = peer
        peer.on_death(lambda: self.process.after(self.draw.expovariate(200), lambda: self._process_gone(session)))
        return session

    def _process_gone(self, session: int) -> None:
        if self.watched.pop(session, None) is not None:
            self.feed(events.ProcessGone(session))

    def lost(self, session: int) -> None:
        del self.links[session]
        self.feed(events.SessionClosed(session))


class EngineSide(FrameProtocol[attach.FromEngine]):
    """One engine process's socket at the worker."""

    def __init__(self, worker: WorkerNode) -> None:
        super().__init__(Decoder(attach.FromEngine), attach.MAX_FRAME)
        self._worker = worker
        self._session = 0
        self._welcomed = False

    def welcome(self, message: attach.Welcome, memory: Memory | None) -> None:
        if self.open:
            self._transport.pipe.memory = memory  # type: ignore[union-attr]
            self._welcomed = True
            self.tell(msgspec.structs.replace(message, protocol=min(message.protocol, self._worker.speaks)))

    def tell(self, message: msgspec.Struct) -> None:
        try:
            self.send(message)
        except LinkClosed:
            return

    def received(self, message: attach.FromEngine) -> None:
        if not self._session and isinstance(message, attach.Hello):
            self._session = self._worker.introduce(self, message, self._transport.other.process)  # type: ignore
            self._worker.feed(events.AttachAsked(self._session, message))
        elif self._welcomed and not isinstance(message, attach.EngineCounters):
            self._worker.feed(events.Received(self._session, message))
        elif not self._welcomed:
            self.close("not expected here")

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        self._worker.checks.refused(error)
        self.close(str(error))

    def lost(self, reason: str) -> None:
        if self._session:
            self._worker.lost(self._session)
