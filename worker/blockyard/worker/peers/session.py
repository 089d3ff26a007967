"""One peer's connection to this worker, on a thread of its own, and what it is sent.

Owns the greeting, the questions one after the other, and the promise that a ServeChunks ends with one PeerServed, when
nothing reads its slots any more. Must never know what is held here: the core answers.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Protocol

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.foreign_hello import foreign_hello
from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.link import LinkClosed, LinkTimeout
from blockyard.common.messages import peer
from blockyard.common.tls import certificate_name
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.channel import Channel
from blockyard.worker.peers.entrance import Refused, admit, other_versions
from blockyard.worker.peers.exchange import SlotMemory, packed, slot_areas
from blockyard.worker.peers.standing import Self

HELLO_SECONDS = 5.0
IDLE_SECONDS = 60.0
_LONGEST_SECONDS = 30.0
"""That a peer is served for, whatever it asks for."""
_CORE_SECONDS = 1.0
"""Beyond a question's deadline, until it is answered without the core."""


class Server(Protocol):
    """What a session needs of who accepted it; all of it may be called from any thread."""

    me: Self
    tls: ssl.SSLContext | None
    memory: SlotMemory
    decoder: Decoder[peer.FromReader]

    def greeted(self, session: Session, node: str) -> None:
        """Let it in; Refused if this node has enough connections."""

    def question(self) -> int:
        """A new number."""

    def post(self, event: wire.PeerEvent) -> None: ...
    def sent(self, size: int) -> None: ...
    def cut_slow(self, session: Session) -> None: ...
    def frame_refused(self, session: Session, error: FrameRefused) -> None: ...


class Session:
    """`run` is the thread; `deliver` and `cut` are for others."""

    def __init__(self, number: int, sock: socket.socket, where: str, server: Server) -> None:
        self.number = number
        self.where = where
        self.node = ""
        self.asked = False
        self._server = server
        self._channel: Channel[peer.FromReader] = Channel(sock, server.decoder)
        self._answered = threading.Condition()
        self._over = False
        self._awaited = 0
        self._answer: wire.ServeChunks | None = None

    def run(self) -> None:
        """Serve until the peer leaves, is silent for too long, or says what it may not. Refused if it is not let in."""
        try:
            self._introduce()
            while True:
                message = self._channel.receive(time.monotonic() + IDLE_SECONDS)
                if not isinstance(message, peer.Fetch):
                    raise FrameRefused("unexpected", f"{type(message).__name__} after the welcome")
                if len(message.keys) % DIGEST_BYTES:
                    raise FrameRefused("malformed", f"keys of {len(message.keys)} bytes; right: {DIGEST_BYTES} each")
                self._answer_one(message)
        except (LinkClosed, LinkTimeout):
            pass
        except FrameRefused as error:
            self._server.frame_refused(self, error)
        finally:
            self._channel.close()

    def deliver(self, order: wire.ServeChunks) -> bool:
        """The core's answer; False if nobody waits for it any more."""
        with self._answered:
            if order.number != self._awaited:
                return False
            self._answer, self._awaited = order, 0
            self._answered.notify()
        return True

    def cut(self) -> None:
        """End it under its thread, also while that waits for the core."""
        self._channel.cut()
        with self._answered:
            self._over = True
            self._answered.notify()

    # Greeting.

    def _introduce(self) -> None:
        deadline = time.monotonic() + HELLO_SECONDS
        certified = self._secure(deadline) if self._server.tls is not None else None
        try:
            hello = self._channel.receive(deadline)
        except LinkTimeout:
            raise Refused("timeout", f"no whole hello within {HELLO_SECONDS:g} s") from None
        except LinkClosed as error:
            raise Refused("gone", str(error)) from error
        except FrameRefused as error:
            self._server.frame_refused(self, error)
            raise self._turned_away(_stranger(error, self._channel.last), deadline) from error
        try:
            if not isinstance(hello, peer.PeerHello):
                raise Refused("hello", f"the first message is {type(hello).__name__}, not a hello")
            protocol = admit(self._server.me, hello, certified)
            self._server.greeted(self, hello.node)
        except Refused as error:
            raise self._turned_away(error, deadline) from None
        self.node = hello.node
        me = self._server.me
        self._channel.send(peer.PeerWelcome(protocol, me.version, me.node, me.boot_id), deadline)

    def _secure(self, deadline: float) -> str:
        assert self._server.tls is not None
        try:
            certificate = self._channel.accept_tls(self._server.tls, deadline)
        except TimeoutError:
            raise Refused("timeout", f"no end of the TLS handshake within {HELLO_SECONDS:g} s") from None
        except (OSError, ValueError) as error:
            raise Refused("tls", str(error)) from error
        return certificate_name(certificate)

    def _turned_away(self, error: Refused, deadline: float) -> Refused:
        """Say why, as well as may be."""
        with contextlib.suppress(LinkClosed, LinkTimeout):
            self._channel.send(peer.PeerRefused(error.code, error.detail[:1024]), deadline)
        return error

    # Questions.

    def _answer_one(self, message: peer.Fetch) -> None:
        keys = [message.keys[at : at + DIGEST_BYTES] for at in range(0, len(message.keys), DIGEST_BYTES)]
        seconds = min(_LONGEST_SECONDS, message.deadline_ms / 1000)
        deadline = time.monotonic() + seconds
        number = self._server.question()
        with self._answered:
            self._awaited, self._answer = number, None
        self.asked = True
        self._server.post(
            wire.PeerAsked(
                session=self.number,
                number=number,
                fingerprint=message.fingerprint,
                group=message.group,
                area_bytes=message.area_bytes,
                areas=message.areas,
                keys=keys,
                deadline_s=seconds,
            )
        )
        order = self._await_core(deadline + _CORE_SECONDS)
        try:
            if order is None or time.monotonic() >= deadline:
                late = bytes([peer.FetchState.DEADLINE]) * len(keys)
                self._channel.send(peer.Fetched(message.number, late, []), time.monotonic() + _CORE_SECONDS)
            else:
                self._send(message, order, deadline)
        except LinkTimeout:
            self._server.cut_slow(self)
            raise
        finally:
            if order is not None:
                self._server.post(wire.PeerServed(self.number, number))

    def _await_core(self, deadline: float) -> wire.ServeChunks | None:
        with self._answered:
            self._answered.wait_for(
                lambda: self._over or self._answer is not None, max(0.0, deadline - time.monotonic())
            )
            answer, self._answer, self._awaited = self._answer, None, 0
        return answer

    def _send(self, message: peer.Fetch, order: wire.ServeChunks, deadline: float) -> None:
        states = bytes(order.states)
        sums = [packed(item.checksums) for item in order.items]
        self._channel.send(peer.Fetched(message.number, states, sums), deadline)
        for item in order.items:
            areas = len(item.checksums)
            with slot_areas(self._server.memory, item.offset, areas, order.stride, order.area_bytes) as views:
                for view in views:
                    self._channel.send_bytes(view, deadline)
            self._server.sent(areas * order.area_bytes)


def _stranger(error: FrameRefused, payload: bytes) -> Refused:
    """What to say to a first frame that is no hello of ours."""
    spoken = foreign_hello(payload, "peer_hello", peer.PROTOCOL_MIN, peer.PROTOCOL_MAX)
    if spoken is None:
        return Refused("hello", f"the first frame is not a hello: {error.detail}")
    return Refused("version", other_versions(spoken.version, spoken.low, spoken.high))
