"""Stream connections between processes: late, stalled, clogged, cut at any byte. Owns the bytes on their way.

An `End` is what a FrameProtocol takes for its transport, so the production class that cuts, decodes and sends frames
runs on it unchanged. Bytes of one direction never overtake each other, as on TCP and Unix sockets.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from blockyard.common.frame_protocol import FrameProtocol
from sim.clock import Clock
from sim.process import Process
from sim.tasks import Future

Protocol = FrameProtocol[Any]
_SPLIT = 0.08
_TAIL = 0.03


class End:
    """One side of a connection."""

    def __init__(self, pipe: Pipe, process: Process, protocol: Protocol) -> None:
        self.pipe = pipe
        self.process = process
        self.protocol = protocol
        self.other: End
        self.unread: deque[tuple[float, bytes | None]] = deque()
        """On its way from here: when it is due, and bytes, or None for the end of the stream."""
        self.stalled_until = 0.0
        self._closing = False
        self._lost = False

    # What a FrameProtocol asks of its transport.

    def write(self, data: bytes) -> None:
        if not self._closing:
            self.pipe.carry(self, data)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for _, data in self.unread if data)

    def close(self) -> None:
        """End after what was written."""
        if not self._closing:
            self._closing = True
            self.pipe.carry(self, None)
            self.process.after(0.0, lambda: self.lose(None))

    def abort(self) -> None:
        """End now; what was written may be lost from any byte on."""
        if not self._closing:
            self.pipe.truncate(self)
            self.close()

    # What the network does to it.

    def lose(self, error: Exception | None) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            self.pipe.network.forget(self.pipe)
            self.protocol.connection_lost(error)

    def take(self, data: bytes | None) -> None:
        """Something has arrived for this side's process."""
        if data is None:
            self.process.call(self._hang_up)
        else:
            self.process.call(lambda: None if self._closing else self.protocol.data_received(data))

    def _hang_up(self) -> None:
        if not self._closing:
            self._closing = True
            self.pipe.carry(self, None)
        self.lose(None)


class Pipe:
    """One connection. `memory` stands for the descriptors that travel with a welcome."""

    def __init__(self, network: Network, name: str, draw: random.Random, quick: bool) -> None:
        self.network = network
        self.name = name
        self.memory: Any = None
        self.ends: tuple[End, End]
        self._clock = network.clock
        self._draw = draw
        self._base = 0.0001 if quick else 0.001

    def join(self, a: End, b: End) -> None:
        self.ends = (a, b)
        a.other, b.other = b, a

    def carry(self, end: End, data: bytes | None) -> None:
        if data and len(data) > 1 and self._draw.random() < _SPLIT:
            at = self._draw.randrange(1, len(data))
            self._carry(end, data[:at])
            data = data[at:]
        self._carry(end, data)

    def _carry(self, end: End, data: bytes | None) -> None:
        delay = self._base * (0.5 + self._draw.random())
        if self._draw.random() < _TAIL:
            delay *= 10 ** self._draw.uniform(0, 2)
        due = self._clock.now + delay + self.network.clog
        if end.unread:
            due = max(due, end.unread[-1][0])
        end.unread.append((due, data))
        self._clock.after(due - self._clock.now, lambda: self.pump(end))

    def pump(self, end: End) -> None:
        """Hand over what is due of what was sent from this end."""
        while end.unread and end.unread[0][0] <= self._clock.now:
            if self._clock.now < end.stalled_until:
                self._clock.after(end.stalled_until - self._clock.now, lambda: self.pump(end))
                return
            _, data = end.unread.popleft()
            end.other.take(data)

    def truncate(self, end: End) -> None:
        """Lose what is on its way, from a byte of the first piece on, or nothing of it."""
        if not end.unread or self._draw.random() < 0.3:
            return
        due, first = end.unread.popleft()
        end.unread.clear()
        if first:
            end.unread.append((due, first[: self._draw.randrange(len(first))]))

    def cut(self) -> None:
        """The connection breaks, and both sides learn of it."""
        for end in self.ends:
            self.truncate(end)
            self._carry(end, None)

    def stall(self, end: End, seconds: float) -> None:
        """Nothing sent from this end arrives for a while."""
        end.stalled_until = max(end.stalled_until, self._clock.now + seconds)


class Network:
    """Who listens where, and all connections."""

    def __init__(self, clock: Clock, draw: Callable[[str], random.Random]) -> None:
        self.clock = clock
        self.clog = 0.0
        """Seconds that everything takes longer."""
        self.pipes: dict[Pipe, None] = {}
        self._draw = draw
        self._listeners: dict[str, tuple[Process, Callable[[], Protocol]]] = {}
        self._made: dict[str, int] = {}

    def listen(self, address: str, process: Process, accept: Callable[[], Protocol]) -> None:
        """Take connections to this address from now on, in place of whoever did before."""
        self._listeners[address] = (process, accept)

    def connect(self, process: Process, address: str, protocol: Protocol) -> Future[bool]:
        """Connect; the future says whether it came about. A paused listener accepts: its kernel does."""
        answer: Future[bool] = Future()
        self.clock.after(0.0005, lambda: self._connect(process, address, protocol, answer))
        return answer

    def forget(self, pipe: Pipe) -> None:
        self.pipes.pop(pipe, None)

    def between(self, prefix: str) -> list[Pipe]:
        """Open connections to addresses that begin so."""
        return [pipe for pipe in self.pipes if pipe.name.startswith(prefix)]

    def _connect(self, process: Process, address: str, protocol: Protocol, answer: Future[bool]) -> None:
        server, accept = self._listeners.get(address, (None, None))
        if server is None or accept is None or not server.alive or not process.alive:
            answer.resolve(False)
            return
        number = self._made[address] = self._made.get(address, 0) + 1
        name = f"{address}#{number}"
        pipe = Pipe(self, name, self._draw(f"net/{process.name}/{name}"), address.startswith("unix:"))
        served = accept()
        pipe.join(End(pipe, process, protocol), End(pipe, server, served))
        self.pipes[pipe] = None
        for end in pipe.ends:
            end.process.on_death(end.abort)
        server.call(lambda: served.connection_made(pipe.ends[1]))  # type: ignore[arg-type]
        protocol.connection_made(pipe.ends[0])  # type: ignore[arg-type]
        answer.resolve(True)
