"""The workers' links: a TCP server, one framed stream per worker.

Owns sockets, hello deadlines and refused frames. Must never know what a message means: it feeds the machine
and carries out what comes back. Sending never waits; a worker that does not read is cut off by its link.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.link import LinkClosed, LinkTimeout, StreamLink
from blockyard.common.messages import cluster as wire
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core import events
from blockyard.leader.core.instructions import CloseLink, Instruction, SendTo
from blockyard.leader.tls import peer_name

HELLO_TIMEOUT = 5.0
SILENCE = 30.0
"""A link that brings nothing for so long is dead: workers report about once a second."""

MAX_REFUSED = 16
"""Malformed frames borne on one link before it is cut: the peer speaks something else."""

STRANGERS = 64
"""Connections beyond the links allowed that may be saying hello; a further one is closed unheard."""

_REASONS = {"oversize": "too-large", "empty": "malformed", "malformed": "malformed"}

Link = StreamLink[wire.FromWorker]
log = logging.getLogger(__name__)


class WorkerLinks:
    """Each accepted connection is served by a task of `tasks`."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        feed: Callable[[events.Event], None],
        counters: Counters,
        max_workers: int,
    ) -> None:
        self._tasks = tasks
        self._feed = feed
        self._counters = counters
        self._max_connections = max_workers + STRANGERS
        self._numbers = itertools.count(1)
        self._links: dict[int, Link] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._decoder: Decoder[wire.FromWorker] = Decoder(wire.FromWorker)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take in one connection."""
        if len(self._open) >= self._max_connections:
            log.warning("connection from %s closed: %d are open", _peer(writer), len(self._open))
            writer.transport.abort()
            return
        task = self._tasks.create_task(self._serve(reader, writer), name=f"link {_peer(writer)}")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def stop(self) -> None:
        """End every link and every connection that has not said hello."""
        for task in self._open:
            task.cancel()

    def carry_out(self, instruction: Instruction) -> None:
        """Send or close. A link that fails is cut, which its own task then reports."""
        link = self._links.get(instruction.link)
        if link is None:
            return
        match instruction:
            case SendTo(_, message):
                try:
                    link.send(message)
                except (LinkClosed, FrameRefused) as error:
                    log.warning("link %d is cut: %s", instruction.link, error)
                    link.abort()
            case CloseLink(number, reason):
                log.info("link %d is closed: %s", number, reason)
                link.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer, self._decoder, wire.MAX_FRAME)
        number = next(self._numbers)
        try:
            if (hello := await self._hello(link, peer_name(writer))) is not None:
                log.info("link %d: worker %s at %s", number, hello.node, _peer(writer))
                self._links[number] = link
                self._feed(events.LinkOpened(number, hello))
                await self._read(number, link)
        except (LinkClosed, LinkTimeout, FrameRefused) as error:
            log.info("link %d from %s ended: %s", number, _peer(writer), error)
        finally:
            if self._links.pop(number, None) is not None:
                self._feed(events.LinkClosed(number))
            link.close()

    async def _hello(self, link: Link, name: str | None) -> wire.WorkerHello | None:
        """The first message if it is a hello by the one whose certificate it came with."""
        try:
            hello = await link.receive(HELLO_TIMEOUT)
        except FrameRefused as error:
            self._count(_REASONS[error.reason])
            link.send(wire.LinkRefused("hello", f"the first frame is not a hello: {error.detail}"[:4096]))
            return None
        if not isinstance(hello, wire.WorkerHello):
            self._count("unexpected")
            link.send(wire.LinkRefused("hello", f"the first message is {type(hello).__name__}, not a hello"))
            return None
        if name is not None and name != hello.node:
            link.send(
                wire.LinkRefused("identity", f"worker {hello.node} came with the certificate of {name!r}")
            )
            return None
        return hello

    async def _read(self, number: int, link: Link) -> None:
        refused = 0
        while True:
            try:
                message = await link.receive(SILENCE)
            except FrameRefused as error:
                self._count(_REASONS[error.reason])
                refused += 1
                # A frame of a bad length leaves the stream out of step.
                if error.reason != "malformed" or refused >= MAX_REFUSED:
                    raise
                log.warning("link %d: %s", number, error)
                continue
            self._feed(events.Received(number, message))

    def _count(self, reason: str) -> None:
        self._counters.add("blockyard_leader_frames_refused_total", reason=reason)


def _peer(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "a peer that is gone"
