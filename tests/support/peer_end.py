"""One worker's end of the peer channel without a worker: real pool memory, real sockets and threads, a core by hand.

Owns what is held here and the record of every event. The core answers each question at once from what is held.
"""

from __future__ import annotations

import itertools
import queue
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import xxhash

from blockyard.common.config import Address
from blockyard.common.messages import peer
from blockyard.common.slot_table import align_page
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.dialing import Dialer
from blockyard.worker.peers.fetching import FetchThreads
from blockyard.worker.peers.server import PeerServer, Reports, bind
from blockyard.worker.peers.standing import Self, Standing
from blockyard.worker.pool import HostPool
from support.closing import Closing

UID = b"u" * 16
WORLD = b"w" * 32
SECONDS = 20.0
INCARNATION = 7

Result = bytes | str
"""What a fetch brought, or the fault."""


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


class PeerEnd(Closing):
    """`with PeerEnd("a") as a, PeerEnd("b") as b: b.fetch(a, [key(1)])`; chunks have `areas` areas of `area_bytes`."""

    def __init__(
        self,
        node: str,
        *,
        areas: int = 2,
        area_bytes: int = 5000,
        pool_bytes: int = 4 << 20,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        cluster: str = "test",
        uid: bytes = UID,
    ) -> None:
        self.node, self.areas, self.area_bytes = node, areas, area_bytes
        self.stride = align_page(area_bytes)
        self.pool = HostPool(b"b" * 16, pool_bytes, pool_bytes, 16)
        self.counts: Counter[str] = Counter()
        self.events: list[wire.PeerEvent] = []
        self.answering = True
        self._held: dict[bytes, wire.ServeItem] = {}
        self._places = itertools.count(0, self.stride * areas)
        self._ops = itertools.count(1)
        self._ended: dict[int, queue.Queue[wire.PeerRead | wire.PeerFailed]] = {}
        self._news: queue.SimpleQueue[wire.PeerEvent | None] = queue.SimpleQueue()
        self.me = Self(cluster, node, b"b" * 16, "test", lambda: Standing(INCARNATION, uid))
        serving, reading = tls or (None, None)
        sock = bind(Address("127.0.0.1", 0))
        self.port = int(sock.getsockname()[1])
        reports = Reports(
            post=self._news.put,
            refused=lambda code: self._count(f"refused {code}"),
            frame_refused=lambda reason: self._count(f"frame {reason}"),
            sent=lambda size: self._count("sent", size),
            cut_slow=lambda: self._count("cut"),
        )
        self.server = PeerServer(sock, self.me, serving, self.pool, reports)
        self.fetching = FetchThreads(
            Dialer(self.me, reading),
            self.pool,
            self._news.put,
            lambda reason: self._count(f"failed {reason}"),
            lambda reason: self._count(f"frame {reason}"),
        )
        self._core = threading.Thread(target=self._run_core, daemon=True)
        self._core.start()
        self.server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold(self, number: int, content: bytes | None = None) -> bytes:
        """Store a chunk; its content, all areas together."""
        content = content or bytes([number % 251]) * (self.areas * self.area_bytes)
        offset = next(self._places)
        sums = []
        for index, area in enumerate(self.pool.areas(offset, self.areas, self.stride)):
            part = content[index * self.area_bytes : (index + 1) * self.area_bytes]
            area[: self.area_bytes] = part
            sums.append(xxhash.xxh3_64_intdigest(part))
            area.release()
        self._held[key(number)] = wire.ServeItem(0, 1, offset, tuple(sums))
        return content

    def spoil(self, number: int) -> None:
        """Change a byte of what is held, behind the back of its checksum."""
        self.pool.memory.map[self._held[key(number)].offset] ^= 1

    def order(
        self,
        node: str,
        address: str,
        numbers: Sequence[int],
        deadline: float = SECONDS,
        *,
        incarnation: int = INCARNATION,
        world: bytes = WORLD,
    ) -> wire.FetchChunks:
        """Begin a fetch into new slots."""
        items = [wire.FetchItem(next(self._ops), key(one), 0, 1, next(self._places)) for one in numbers]
        for item in items:
            self._ended[item.op] = queue.Queue()
        order = wire.FetchChunks(
            node, incarnation, address, world, 0, self.area_bytes, self.areas, self.stride, deadline, items
        )
        self.fetching.submit(order)
        return order

    def start_over(self) -> None:
        """Use all places anew, whatever lies there."""
        self._places = itertools.count(0, self.stride * self.areas)

    def results(self, order: wire.FetchChunks) -> list[Result]:
        """What became of each item; each must end exactly once."""
        return [self._result(item) for item in order.items]

    def fetch(self, other: PeerEnd, *numbers: int, deadline: float = SECONDS) -> list[Result]:
        return self.results(self.order(other.node, other.address, numbers, deadline))

    def content(self, item: wire.FetchItem) -> bytes:
        """What lies in an item's slot now."""
        starts = (item.offset + area * self.stride for area in range(self.areas))
        return b"".join(bytes(self.pool.memory.view[start : start + self.area_bytes]) for start in starts)

    def of(self, kind: type) -> list[wire.PeerEvent]:
        """All events of a kind so far."""
        return [one for one in self.events if isinstance(one, kind)]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}; {self.counts} {self.events}"
            time.sleep(0.002)

    def answer(self, asked: wire.PeerAsked) -> None:
        """As the core would."""
        fits = (asked.areas, asked.area_bytes) == (self.areas, self.area_bytes)
        found = [self._held.get(one) for one in asked.keys]
        here, gone, shape = peer.FetchState.OK, peer.FetchState.NOT_HERE, peer.FetchState.SHAPE
        states = [(here if one else gone) if fits else shape for one in found]
        items = [one for one in found if one and fits]
        self.server.serve(wire.ServeChunks(asked.session, asked.number, states, self.area_bytes, self.stride, items))

    def close(self) -> None:
        self.server.stop(SECONDS)
        self.fetching.stop(SECONDS)
        self._news.put(None)
        self._core.join()
        self.pool.close()
        assert self.pool.memory.map.closed, "something still holds on to the pool"

    def _result(self, item: wire.FetchItem) -> Result:
        event = self._ended[item.op].get(timeout=SECONDS)
        assert self._ended[item.op].empty(), "ended twice"
        return event.reason if isinstance(event, wire.PeerFailed) else self.content(item)

    def _count(self, what: str, size: int = 1) -> None:
        self.counts[what] += size

    def _run_core(self) -> None:
        while (event := self._news.get()) is not None:
            self.events.append(event)
            match event:
                case wire.PeerAsked() if self.answering:
                    self.answer(event)
                case wire.PeerRead(op) | wire.PeerFailed(op):
                    self._ended[op].put(event)
