"""The worker's loop: events into the core, instructions out to sockets, pool and leader.

Owns the one place where the core is called, always on the event loop's thread, and the order in which
instructions are carried out. Must never decide anything about chunks. No step here waits: what takes time is
done elsewhere and comes back as an event.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

from blockyard.common.messages import attach
from blockyard.common.metrics.counters import Counters
from blockyard.worker.attach import AttachServer
from blockyard.worker.checksums import Area, ChecksumThreads
from blockyard.worker.core import events, instructions
from blockyard.worker.core.disk.wire import DiskInstruction
from blockyard.worker.core.peers import wire as peers
from blockyard.worker.core.worker import WorkerCore
from blockyard.worker.engine_numbers import EngineNumbers
from blockyard.worker.pool import HostPool

_LONGEST_TICK = 0.1
_SHORTEST_TICK = 0.001


class Publisher(Protocol):
    """Takes what the leader is to be told; drops it when there is no link."""

    def publish(self, messages: list[instructions.ToLeader]) -> None: ...


class DiskShell(Protocol):
    """Carries out what the disk tier says; each operation comes back as one event."""

    def execute(self, one: DiskInstruction) -> None: ...


class PeerShell(Protocol):
    """Carries out what is to be done with other workers; all that it finds out is an event."""

    def execute(self, one: peers.PeerInstruction) -> None: ...


class Shell:
    """Give it events; it is its attach server's `Reports`. `connect` it before the first event."""

    def __init__(self, core: WorkerCore, pool: HostPool, counters: Counters, delta_interval: float) -> None:
        self._core = core
        self._pool = pool
        self._counters = counters
        # Deltas go out with ticks, which the core wants at least every _LONGEST_TICK.
        self._pause = min(_LONGEST_TICK, delta_interval)
        self.numbers = EngineNumbers()
        self._events: deque[events.Event] = deque()
        self._busy = False
        self._last_tick = time.monotonic()
        self._crash: Exception | None = None
        self._crashed = asyncio.Event()

    def connect(
        self,
        server: AttachServer,
        checksums: ChecksumThreads,
        leader: Publisher,
        disk: DiskShell,
        others: PeerShell,
    ) -> None:
        """Who carries instructions out."""
        self._server = server
        self._checksums = checksums
        self._leader = leader
        self._disk = disk
        self._others = others

    def feed(self, event: events.Event) -> None:
        """Let the core handle one event now, and do what it says; an event caused by that comes after it.

        The queue is bounded by that: one instruction causes at most one event.
        """
        if self._crash is not None:
            return
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                for instruction in self._core.handle(time.monotonic(), self._events.popleft()):
                    self._execute(instruction)
        except Exception as error:
            # Half of an event may have been handled: the books cannot be trusted, so they serve no one.
            self._crash = error
            self._crashed.set()
        finally:
            self._busy = False

    async def watch(self) -> None:
        """Raises what went wrong in the core, which callers of `feed` cannot do anything about."""
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash

    async def tick(self) -> None:
        """Tell the core of time until cancelled."""
        while True:
            self.feed(events.Tick())
            now = self._last_tick = time.monotonic()
            deadline = self._core.next_deadline()
            due = self._pause if deadline is None else max(_SHORTEST_TICK, deadline - now)
            await asyncio.sleep(min(self._pause, due))

    def progresses(self, within: float) -> bool:
        """The loop has run during the last `within` seconds."""
        return time.monotonic() - self._last_tick < within

    def _execute(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Send(session, message):
                self._server.send(session, message)
            case instructions.WriteSlot(slot, record):
                self._pool.write_slot(slot, record)
            case instructions.ComputeChecksum():
                self._checksums.submit(_area(instruction))
            case instructions.Publish(messages):
                self._leader.publish(messages)
            case instructions.Accept(session, message, with_memory):
                self._server.welcome(session, message, with_memory)
            case instructions.CloseSession(session, reason):
                self._server.close(session, reason)
            case instructions.Unwatch(session):
                self._server.unwatch(session)
            case peers.FetchChunks() | peers.CancelFetches() | peers.ServeChunks():
                self._others.execute(instruction)
            case _:
                self._disk.execute(instruction)

    # Called by the attach server.

    def attach_asked(self, session: int, hello: attach.Hello) -> None:
        self.numbers.came(hello.engine)
        self.feed(events.AttachAsked(session, hello))

    def message(self, session: int, message: attach.FromEngine) -> None:
        self.feed(events.Received(session, message))

    def counters(self, engine: str, message: attach.EngineCounters) -> None:
        """Numbers of an engine decide nothing, so the core does not see them."""
        self.numbers.add(engine, message)

    def link_lost(self, session: int, engine: str) -> None:
        self.numbers.went(engine)
        self.feed(events.SessionClosed(session))

    def process_gone(self, session: int) -> None:
        self.feed(events.ProcessGone(session))

    def frame_refused(self, reason: str) -> None:
        self._counters.add("blockyard_worker_frames_refused_total", reason=reason)

    def handshake_refused(self, code: str) -> None:
        self._counters.add("blockyard_worker_handshakes_refused_total", reason=code)

    def checksum_ended(self, area: Area, result: tuple[int, ...] | str) -> None:
        """On the loop's thread, once per ComputeChecksum."""
        if isinstance(result, str):
            self.feed(events.ChecksumFailed(area.slot, area.generation, result))
        else:
            self.feed(events.ChecksumDone(area.slot, area.generation, result))


def _area(order: instructions.ComputeChecksum) -> Area:
    return Area(
        slot=order.slot,
        generation=order.generation,
        offset=order.offset,
        area_bytes=order.area_bytes,
        areas=order.areas,
        stride=order.area_stride,
    )
