"""The workers' links: one framed link per worker.

Owns hello deadlines and refused frames. Must never know what a message means: it feeds the machine and carries out
what comes back. Sending never waits; a worker that does not read is cut off by its link.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.foreign_hello import foreign_hello
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.link import LinkClosed
from blockyard.common.logs import fields
from blockyard.common.messages import cluster as wire
from blockyard.common.metrics.counters import Counters
from blockyard.common.tls import peer_name
from blockyard.leader.core import events
from blockyard.leader.core.instructions import CloseLink, Instruction, NoteDrift, SendTo
from blockyard.leader.refusals import Refusals

HELLO_TIMEOUT = 5.0
SILENCE = 15.0
"""A link that brings nothing for so long is dead: workers ping about once a second."""

LOOK = 0.5

MAX_REFUSED = 16
"""Malformed frames borne on one link before it is cut: the peer speaks something else."""

log = logging.getLogger(__name__)


class WorkerLinks:
    """All links of this process. A bug met while one is served ends the process: see `watch`."""

    def __init__(self, feed: Callable[[events.Event], None], counters: Counters, refusals: Refusals) -> None:
        self.feed = feed
        self._counters = counters
        self._refusals = refusals
        self._numbers = itertools.count(1)
        self._open: set[_Link] = set()
        self._greeted: dict[int, _Link] = {}
        self._decoder: Decoder[wire.FromWorker] = Decoder(wire.FromWorker)
        self._bug: BaseException | None = None

    def make(self) -> "_Link":
        """The protocol of one connection."""
        return _Link(self, self._decoder)

    @property
    def open(self) -> int:
        """Connections, with and without a hello."""
        return len(self._open)

    async def watch(self) -> None:
        """Cut links that are silent for too long, until cancelled. Raises what a link's callback raised."""
        while True:
            now = time.monotonic()
            for link in list(self._open):
                link.look(now)
            if self._bug is not None:
                raise self._bug
            await asyncio.sleep(LOOK)

    def stop(self) -> None:
        """End every link, also those that have not said hello."""
        for link in list(self._open):
            link.abort("the leader ends")

    def carry_out(self, instruction: Instruction) -> None:
        """Send or close. A link that fails is cut, which it then reports by itself."""
        link = self._greeted.get(instruction.link)
        if link is None:
            return
        match instruction:
            case SendTo(_, message):
                if isinstance(message, wire.LinkRefused):
                    self._refusals.count(message.code)
                try:
                    link.send(message)
                except (LinkClosed, FrameRefused) as error:
                    link.abort(str(error))
            case CloseLink(_, reason):
                link.close(reason)
            case NoteDrift(_, node, buckets):
                log.warning(
                    "the index had drifted from what a worker holds; it is being repaired",
                    extra=fields(link=instruction.link, node=node, buckets=len(buckets), first=buckets[:8]),
                )

    def opened(self, link: "_Link") -> None:
        """A connection was made."""
        self._open.add(link)

    def greeted(self, link: "_Link", hello: wire.WorkerHello) -> int:
        """The link said hello; returns its number."""
        number = next(self._numbers)
        log.info("link opened", extra=fields(link=number, node=hello.node, peer=link.peer))
        self._greeted[number] = link
        self.feed(events.LinkOpened(number, hello))
        return number

    def lost(self, link: "_Link", number: int, reason: str) -> None:
        """The link is over."""
        self._open.discard(link)
        log.info("link ended", extra=fields(link=number or "none", peer=link.peer, reason=reason))
        if self._greeted.pop(number, None) is not None:
            self.feed(events.LinkClosed(number))

    def count_refused(self, reason: str) -> None:
        """A frame was not acted on."""
        self._counters.add("blockyard_leader_frames_refused_total", reason=reason)

    def turned_away(self, link: "_Link", code: str, detail: str) -> None:
        """A link ends without a hello that could be taken."""
        self._refusals.note(code, link.peer, detail)

    def note_bug(self, error: BaseException) -> None:
        """The machine raised: its state can no longer be trusted."""
        self._bug = self._bug or error


class _Link(FrameProtocol[wire.FromWorker]):
    """One connection, from its hello on."""

    def __init__(self, links: WorkerLinks, decoder: Decoder[wire.FromWorker]) -> None:
        super().__init__(decoder, wire.MAX_FRAME)
        self._links = links
        self._name: str | None = None
        self._number = 0
        self._refused = 0
        self._heard = time.monotonic()
        self.peer = "unknown"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "gone"
        if transport.get_extra_info("ssl_object") is not None:
            self._name = peer_name(transport)
        self._links.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:
            self._links.note_bug(error)
            raise

    def received(self, message: wire.FromWorker) -> None:
        self._heard = time.monotonic()
        if self._number:
            self._links.feed(events.Received(self._number, message))
        elif not isinstance(message, wire.WorkerHello):
            self._links.count_refused("unexpected")
            self._turn_away("hello", f"the first message is {type(message).__name__}, not a hello")
        elif self._name is not None and self._name != message.node:
            self._turn_away("identity", f"worker {message.node} came with the certificate of {self._name!r}")
        else:
            self._number = self._links.greeted(self, message)

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        self._links.count_refused(error.reason)
        self._refused += 1
        if not self._number:
            self._turn_away_stranger(error, payload)
        elif error.reason != "malformed" or self._refused >= MAX_REFUSED:
            self.abort(str(error))
        else:
            log.warning("frame refused", extra=fields(link=self._number, peer=self.peer, error=error))

    def lost(self, reason: str) -> None:
        self._links.lost(self, self._number, reason)

    def look(self, now: float) -> None:
        """Cut the link if it has been silent for too long."""
        silence = now - self._heard
        if silence > (SILENCE if self._number else HELLO_TIMEOUT):
            self.abort(f"nothing received for {silence:.1f} s")

    def _turn_away_stranger(self, error: FrameRefused, payload: bytes) -> None:
        spoken = foreign_hello(payload, "worker_hello", wire.PROTOCOL_MIN, wire.PROTOCOL_MAX)
        if spoken is None:
            self._turn_away("hello", f"the first frame is not a hello: {error.detail}"[:4096])
            return
        self._turn_away(
            "version",
            f"worker {spoken.version} speaks protocol {spoken.low} to {spoken.high}, "
            f"this leader speaks {wire.PROTOCOL_MIN} to {wire.PROTOCOL_MAX}",
        )

    def _turn_away(self, code: str, detail: str) -> None:
        """Say why, then close. What the peer sent behind the frame that ended this link counts no more."""
        if not self.open:
            return
        self._links.turned_away(self, code, detail)
        with suppress(LinkClosed):
            self.send(wire.LinkRefused(code, detail))
        self.close(f"{code}: {detail}")
