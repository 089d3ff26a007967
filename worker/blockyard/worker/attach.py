"""The attach server: engines' processes come in here, and their deaths are noticed here.

Owns sockets, handshakes in progress, links and pidfds, by session number. Must never know what a session
means or why one is accepted: its `Reports` decide, and call back with `welcome`, `send`, `close` and
`unwatch`.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from typing import Protocol

import msgspec

from blockyard.common.codec import encode
from blockyard.common.logs import fields
from blockyard.common.messages import attach
from blockyard.worker.engine_link import EngineLink
from blockyard.worker.handshake import HandshakeRefused, Introduction, receive_hello
from blockyard.worker.listener import Listener

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 2.0
MAX_HANDSHAKES = 64
_MAX_LINKS = 1024
_ACCEPTS_PER_WAKE = 16
_ACCEPT_PAUSE_SECONDS = 0.2


class Reports(Protocol):
    """Where this server's news goes; called on the event loop's thread."""

    def attach_asked(self, session: int, hello: attach.Hello) -> None: ...
    def message(self, session: int, message: attach.FromEngine) -> None: ...
    def counters(self, engine: str, message: attach.EngineCounters) -> None: ...
    def link_lost(self, session: int, engine: str) -> None: ...
    def process_gone(self, session: int) -> None: ...
    def frame_refused(self, reason: str) -> None: ...
    def handshake_refused(self, code: str) -> None: ...


class AttachServer:
    """Run `run()` in a task group; it ends when cancelled, with every socket and descriptor closed."""

    def __init__(self, listener: Listener, descriptors: list[int], reports: Reports) -> None:
        self._listener = listener
        self._descriptors = descriptors
        self._reports = reports
        self._numbers = itertools.count(1)
        self._links: dict[int, EngineLink] = {}
        self._pidfds: dict[int, int] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._cannot_accept = asyncio.Event()
        """Out of descriptors or memory, as a rule."""
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def run(self) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        descriptor = self._listener.sock.fileno()
        try:
            async with asyncio.TaskGroup() as handshakes:
                while True:
                    self._cannot_accept.clear()
                    loop.add_reader(descriptor, self._take_connections, handshakes)
                    await self._cannot_accept.wait()
                    # The socket stays readable: without a pause this would be a busy loop.
                    loop.remove_reader(descriptor)
                    await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
        finally:
            loop.remove_reader(descriptor)
            for link in list(self._links.values()):
                link.abort("the worker stops")
            for session in list(self._pidfds):
                self.unwatch(session)

    def welcome(self, session: int, message: attach.Welcome, with_memory: bool) -> None:
        """Accept a session that `attach_asked` told of."""
        link = self._links.get(session)
        if link is None:
            return
        link.welcome(message, self._descriptors if with_memory else [])
        hello = link.hello
        _log.info(
            "engine attached",
            extra=fields(engine=hello.engine, role=hello.role, rank=hello.rank, session=session, pid=link.pid),
        )

    def send(self, session: int, message: msgspec.Struct) -> None:
        """Send to a session; if its peer is gone, `link_lost` says so."""
        link = self._links.get(session)
        if link is not None:
            link.tell(message)

    def close(self, session: int, reason: str) -> None:
        """End a session's link; its process is watched on."""
        link = self._links.get(session)
        if link is not None:
            link.end(reason)

    def unwatch(self, session: int) -> None:
        """Nobody wants to know any more when this session's process ends."""
        pidfd = self._pidfds.pop(session, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    async def flush(self, timeout: float) -> None:
        """Wait, at most so long, until every ended link has sent its last words."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._none_left.wait()

    # Called by links.

    def message(self, session: int, message: attach.FromEngine) -> None:
        if isinstance(message, attach.EngineCounters):
            self._reports.counters(self._links[session].hello.engine, message)
        else:
            self._reports.message(session, message)

    def frame_refused(self, session: int, reason: str, detail: str) -> None:
        hello = self._links[session].hello
        _log.warning(
            "frame refused",
            extra=fields(engine=hello.engine, role=hello.role, rank=hello.rank, reason=reason, detail=detail),
        )
        self._reports.frame_refused(reason)

    def link_lost(self, session: int, reason: str) -> None:
        link = self._links.pop(session)
        if not self._links:
            self._none_left.set()
        if not link.asked:
            self.unwatch(session)
            return
        hello = link.hello
        _log.info(
            "engine link ended",
            extra=fields(engine=hello.engine, role=hello.role, rank=hello.rank, session=session, reason=reason),
        )
        self._reports.link_lost(session, hello.engine)

    # Handshakes.

    def _take_connections(self, handshakes: asyncio.TaskGroup) -> None:
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                sock, _ = self._listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("connection not accepted", extra=fields(error=error))
                self._cannot_accept.set()
                return
            sock.setblocking(False)
            if len(self._handshakes) >= MAX_HANDSHAKES or len(self._links) >= _MAX_LINKS:
                self._refuse(sock, HandshakeRefused("busy", "too many connections at once; try again later"))
                continue
            task = handshakes.create_task(self._introduce(sock), name="handshake")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _introduce(self, sock: socket.socket) -> None:
        try:
            introduction = await receive_hello(sock, HANDSHAKE_SECONDS)
        except HandshakeRefused as error:
            self._refuse(sock, error)
        except OSError as error:
            self._refuse(sock, HandshakeRefused("gone", str(error)))
        except asyncio.CancelledError:
            sock.close()
            raise
        else:
            await self._open(sock, introduction)

    def _refuse(self, sock: socket.socket, error: HandshakeRefused) -> None:
        _log.warning("handshake refused", extra=fields(code=error.code, detail=error.detail))
        self._reports.handshake_refused(error.code)
        with contextlib.suppress(OSError):
            sock.send(
                encode(attach.Refused(error.code, error.detail[: attach.MAX_TEXT]), attach.MAX_FRAME),
                socket.MSG_NOSIGNAL,
            )
        sock.close()

    async def _open(self, sock: socket.socket, introduction: Introduction) -> None:
        session = next(self._numbers)
        link = EngineLink(session, sock, introduction.hello, introduction.pid, self)
        self._links[session] = link
        self._none_left.clear()
        self._pidfds[session] = introduction.pidfd
        loop = asyncio.get_running_loop()
        loop.add_reader(introduction.pidfd, self._process_gone, session)
        try:
            await loop.connect_accepted_socket(lambda: link, sock)
        except OSError as error:
            sock.close()
            link.connection_lost(error)
            return
        if session not in self._pidfds:
            link.abort("the process ended before it was attached")
        elif session in self._links:
            link.asked = True
            self._reports.attach_asked(session, link.hello)

    def _process_gone(self, session: int) -> None:
        self.unwatch(session)
        link = self._links.get(session)
        if link is None or link.asked:
            self._reports.process_gone(session)
