"""A worker's connections with other workers: it serves chunks and fetches them, as production's threads do.

Owns the bytes on their way, page by page in virtual time, so that what changes under a transfer shows. Messages are the
production ones; the payload travels as frames of one page each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.identity import split_keys
from blockyard.common.link import LinkClosed
from blockyard.common.messages import peer
from blockyard.common.messages.peer import FetchState
from blockyard.common.slot_table import PAGE
from blockyard.worker.core.peers import wire
from sim.tasks import Future
from sim.violation import Violation

if TYPE_CHECKING:
    from sim.worker_node import WorkerNode

_PAGE_SECONDS = 0.001
_OPEN_SECONDS = 1.0


class Page(msgspec.Struct, array_like=True, frozen=True, tag="page"):
    """One page of the payload, as its tag."""

    tag: bytes


class PeerSide:
    """Runs in the worker's process. While it `lies`, what it sends is not what it says."""

    def __init__(self, worker: WorkerNode) -> None:
        self.worker = worker
        self.address = f"{worker.process.name}:7500"
        self.lies = False
        self.sessions: dict[int, ServingLink] = {}
        self._last = 0
        self._cancelled: set[int] = set()
        worker.world.network.listen(f"peer:{self.address}", worker.process, lambda: ServingLink(self))

    def execute(self, one: wire.PeerInstruction) -> None:
        match one:
            case wire.FetchChunks():
                for item in one.items:
                    self.worker.memory.begin_copy(item.slot)
                self.worker.process.spawn(self._fetch(one))
            case wire.CancelFetches(ops):
                self._cancelled |= set(ops)
            case wire.ServeChunks():
                for place in one.items:
                    self.worker.memory.begin_copy(place.slot)
                self.worker.process.spawn(self._serve(one))

    def admit(self, link: ServingLink) -> int:
        self._last += 1
        self.sessions[self._last] = link
        return self._last

    # Serving.

    async def _serve(self, order: wire.ServeChunks) -> None:
        """Send the answer and its bytes, as far as the peer is there."""
        link = self.sessions.get(order.session)
        sums = [b"".join(one.to_bytes(8, "little") for one in place.checksums) for place in order.items]
        try:
            if link is not None:
                link.send(peer.Fetched(order.number, bytes(order.states), sums))
                for place in order.items:
                    await self._send(link, order, place)
        except LinkClosed:
            pass
        for place in order.items:
            self.worker.memory.end_copy(place.slot)
        self.worker.feed(wire.PeerServed(order.session, order.number))

    async def _send(self, link: ServingLink, order: wire.ServeChunks, place: wire.ServeItem) -> None:
        for area in range(len(place.checksums)):
            first = (place.offset + area * order.stride) // PAGE
            for page in range(first, first + order.area_bytes // PAGE):
                await self.worker.process.sleep(_PAGE_SECONDS * self.worker.draw.random())
                link.send(Page(b"lie" if self.lies else self.worker.memory.pages[page]))

    # Fetching.

    async def _fetch(self, order: wire.FetchChunks) -> None:
        """Each item ends once, here."""
        left = deque(order.items)
        fault: wire.FetchFault = "gone"
        process = self.worker.process
        until = process.clock.now + order.deadline_s
        link = FetchingLink(self)
        try:
            if await self.worker.world.network.connect(process, f"peer:{order.address}", link):
                link.send(self._question(order))
                await self._receive(order, link, left, until)
        except TimeoutError:
            fault = "deadline"
        except LinkClosed:
            pass
        link.abort("over")
        while left:
            self._end(left.popleft(), fault)

    def _question(self, order: wire.FetchChunks) -> peer.Fetch:
        keys = b"".join(item.key for item in order.items)
        left_ms = max(1, int(1000 * order.deadline_s))
        return peer.Fetch(1, order.fingerprint, order.group, order.area_bytes, order.areas, keys, left_ms)

    async def _receive(
        self, order: wire.FetchChunks, link: FetchingLink, left: deque[wire.FetchItem], until: float
    ) -> None:
        answer = await link.next(until)
        if not isinstance(answer, peer.Fetched) or len(answer.states) != len(order.items):
            raise LinkClosed("no answer to the question")
        sums = deque(answer.checksums)
        for state in answer.states:
            if self._cancelled >= {item.op for item in left}:
                raise TimeoutError
            if state != FetchState.OK:
                self._end(left.popleft(), _FAULTS[FetchState(state)])
                continue
            await self._receive_one(order, link, left[0], until)
            said = sums.popleft()
            found = tuple(self._hash(order, left[0], area) for area in range(order.areas))
            right = said == b"".join(one.to_bytes(8, "little") for one in found)
            if right or self.worker.world.broken.trusts_peers:
                self._end(left.popleft(), None, found)
            else:
                self._end(left.popleft(), "corrupt")

    async def _receive_one(
        self, order: wire.FetchChunks, link: FetchingLink, item: wire.FetchItem, until: float
    ) -> None:
        for area in range(order.areas):
            first = (item.offset + area * order.stride) // PAGE
            for page in range(first, first + order.area_bytes // PAGE):
                got = await link.next(until)
                if not isinstance(got, Page):
                    raise LinkClosed("no page")
                self.worker.memory.pages[page] = got.tag

    def _hash(self, order: wire.FetchChunks, item: wire.FetchItem, area: int) -> int:
        return self.worker.memory.hash_area(item.offset + area * order.stride, order.area_bytes)

    def _end(self, item: wire.FetchItem, fault: wire.FetchFault | None, found: tuple[int, ...] = ()) -> None:
        self._cancelled.discard(item.op)
        self.worker.memory.end_copy(item.slot)
        self.worker.world.numbers[f"fetches {fault or 'ok'}"] += 1
        self.worker.feed(wire.PeerFailed(item.op, fault) if fault else wire.PeerRead(item.op, found))


class ServingLink(FrameProtocol[peer.Fetch]):
    """A peer's connection, at the worker that serves it."""

    def __init__(self, side: PeerSide) -> None:
        super().__init__(Decoder(peer.Fetch), peer.MAX_FRAME)
        self._side = side
        self._session = side.admit(self)

    def received(self, message: peer.Fetch) -> None:
        asked = wire.PeerAsked(
            session=self._session,
            number=message.number,
            fingerprint=message.fingerprint,
            group=message.group,
            area_bytes=message.area_bytes,
            areas=message.areas,
            keys=split_keys(message.keys),
            deadline_s=message.deadline_ms / 1000,
        )
        self._side.worker.feed(asked)

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        raise Violation("frames-understood", f"{self._side.worker.node}: {error}")

    def lost(self, reason: str) -> None:
        del self._side.sessions[self._session]
        self._side.worker.feed(wire.PeerSessionClosed(self._session))


class FetchingLink(FrameProtocol["peer.Fetched | Page"]):
    """A connection to a peer, at the worker that fetches."""

    def __init__(self, side: PeerSide) -> None:
        super().__init__(Decoder(peer.Fetched | Page), peer.MAX_FRAME)
        self._side = side
        self._inbox: deque[peer.Fetched | Page] = deque()
        self._came: Future[None] = Future()
        self._over = False

    async def next(self, until: float) -> peer.Fetched | Page:
        """What comes next; LinkClosed at the end, TimeoutError when it is late."""
        process = self._side.worker.process
        while not self._inbox and not self._over:
            if process.clock.now >= until:
                raise TimeoutError
            self._came = Future()
            await process.within(self._came, until - process.clock.now)
        if not self._inbox:
            raise LinkClosed("the peer is gone")
        return self._inbox.popleft()

    def received(self, message: peer.Fetched | Page) -> None:
        self._inbox.append(message)
        self._came.resolve(None)

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        raise Violation("frames-understood", f"{self._side.worker.node}: {error}")

    def lost(self, reason: str) -> None:
        self._over = True
        self._came.resolve(None)


_FAULTS: dict[FetchState, wire.FetchFault] = {
    FetchState.NOT_HERE: "not-here",
    FetchState.BUSY: "busy",
    FetchState.DEADLINE: "deadline",
    FetchState.SHAPE: "shape",
}
