"""Where peers connect: the listening socket and the sessions of those who are in.

Owns how many there may be, and their end. A connection costs a thread, so there are bounds: on all, on those that have
not said who they are, and on those of one node.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.config import Address
from blockyard.common.errors import ConfigError
from blockyard.common.logs import fields
from blockyard.common.messages import peer
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.entrance import Refused
from blockyard.worker.peers.exchange import SlotMemory
from blockyard.worker.peers.session import Session
from blockyard.worker.peers.standing import Self

_log = logging.getLogger(__name__)

MOST_SESSIONS = 256
MOST_STRANGERS = 32
MOST_PER_NODE = 8
_BACKLOG = 128
_PAUSE_SECONDS = 0.2
_MOST_TOLD = 256


@dataclass(frozen=True, slots=True)
class Reports:
    """Where news go, from any thread: events, and words and sizes to count."""

    post: Callable[[wire.PeerEvent], None]
    refused: Callable[[str], None]
    frame_refused: Callable[[str], None]
    sent: Callable[[int], None]
    cut_slow: Callable[[], None]


def bind(listen: Address) -> socket.socket:
    """A socket on which peers may connect. ConfigError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"peer_listen = {listen}: {error.strerror}; right: a free port of this machine") from error


class PeerServer:
    """Serves on a socket that `bind` gave, from `start` to `stop`."""

    def __init__(
        self, sock: socket.socket, me: Self, tls: ssl.SSLContext | None, memory: SlotMemory, reports: Reports
    ) -> None:
        self.me = me
        self.tls = tls
        self.memory = memory
        self.decoder: Decoder[peer.FromReader] = Decoder(peer.FromReader)
        self._sock = sock
        self._reports = reports
        self._session_numbers = itertools.count(1)
        self._questions = itertools.count(1)
        self._lock = threading.Lock()
        self._sessions: dict[int, Session] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._told: set[tuple[str, str]] = set()
        self._stopping = False
        self._acceptor = threading.Thread(target=self._accept, name="peers", daemon=True)

    @property
    def sessions(self) -> int:
        with self._lock:
            return len(self._sessions)

    def start(self) -> None:
        """Take connections from now on."""
        self._acceptor.start()

    def serve(self, order: wire.ServeChunks) -> None:
        """Send what the core says, on the session's own thread."""
        with self._lock:
            session = self._sessions.get(order.session)
        if session is None or not session.deliver(order):
            self._reports.post(wire.PeerServed(order.session, order.number))

    def stop(self, timeout: float) -> None:
        """End every connection; returns when no thread reads the pool any more, or after `timeout` seconds."""
        end = time.monotonic() + timeout
        with self._lock:
            self._stopping = True
        # Closing alone would not wake the thread that accepts.
        self._sock.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(max(0.0, end - time.monotonic()))
        self._sock.close()
        with self._lock:
            sessions, threads = list(self._sessions.values()), list(self._threads.values())
        for session in sessions:
            session.cut()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    # Called by sessions, on their threads.

    def greeted(self, session: Session, node: str) -> None:
        with self._lock:
            others = sum(one.node == node for one in self._sessions.values())
            if others >= MOST_PER_NODE:
                raise Refused("busy", f"{node} has {others} connections already")
            session.node = node

    def question(self) -> int:
        return next(self._questions)

    def post(self, event: wire.PeerEvent) -> None:
        self._reports.post(event)

    def sent(self, size: int) -> None:
        self._reports.sent(size)

    def cut_slow(self, session: Session) -> None:
        _log.warning("peer cut: it does not take what it asked for", extra=fields(node=session.node, at=session.where))
        self._reports.cut_slow()

    def frame_refused(self, session: Session, error: FrameRefused) -> None:
        self._reports.frame_refused(error.reason)

    # Threads.

    def _accept(self) -> None:
        while True:
            try:
                sock, where = self._sock.accept()
            except OSError as error:
                if self._stopping:
                    return
                # Out of descriptors, as a rule: the socket stays readable, and without a pause this would spin.
                _log.warning("peer not accepted", extra=fields(error=error))
                time.sleep(_PAUSE_SECONDS)
                continue
            self._open(sock, str(where[0]))

    def _open(self, sock: socket.socket, where: str) -> None:
        with self._lock:
            strangers = sum(not one.node for one in self._sessions.values())
            crowded = len(self._sessions) >= MOST_SESSIONS or strangers >= MOST_STRANGERS
            if not (crowded or self._stopping):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                session = Session(next(self._session_numbers), sock, where, self)
                thread = threading.Thread(target=self._run, args=(session,), name="peer", daemon=True)
                with contextlib.suppress(RuntimeError):  # there are as many threads as there may be
                    thread.start()
                    self._sessions[session.number] = session
                    self._threads[session.number] = thread
                    return
        sock.close()
        if not self._stopping:
            self._turned_away(where, Refused("crowded", "too many connections at once"))

    def _run(self, session: Session) -> None:
        try:
            session.run()
        except Refused as error:
            self._turned_away(session.where, error)
        except Exception:
            _log.exception("a peer's session has a bug", extra=fields(node=session.node))
        finally:
            with self._lock:
                del self._sessions[session.number], self._threads[session.number]
            if session.asked:
                self._reports.post(wire.PeerSessionClosed(session.number))

    def _turned_away(self, where: str, error: Refused) -> None:
        """Counted each time, told once for each host and reason."""
        self._reports.refused(error.code)
        with self._lock:
            new = (where, error.code) not in self._told and len(self._told) < _MOST_TOLD
            if new:
                self._told.add((where, error.code))
        _log.log(
            logging.WARNING if new else logging.DEBUG,
            "peer turned away",
            extra=fields(host=where, code=error.code, detail=error.detail),
        )
