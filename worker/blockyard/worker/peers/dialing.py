"""A connection to a peer, up to its welcome. Owns the way there and the reasons why it may fail; keeps nothing."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Literal

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.config import parse_address
from blockyard.common.errors import BlockyardError
from blockyard.common.link import LinkClosed, LinkTimeout
from blockyard.common.messages import peer
from blockyard.common.tls import certificate_name
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.channel import Channel
from blockyard.worker.peers.names import Names
from blockyard.worker.peers.standing import Self

OPEN_SECONDS = 2.0

Reason = Literal["connect", "tls", "identity", "timeout", "refused", "busy", "malformed"]


class NotReached(BlockyardError):
    """There is no connection to this peer, and why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Dialer:
    """`dial` is safe to call from any thread."""

    def __init__(self, me: Self, tls: ssl.SSLContext | None) -> None:
        self._me = me
        self._tls = tls
        self._names = Names()
        self._decoder: Decoder[peer.ToReader] = Decoder(peer.ToReader)

    def dial(self, order: wire.FetchChunks, deadline: float) -> Channel[peer.ToReader]:
        """Connected to the peer that an order names, and welcome there; NotReached if that fails."""
        deadline = min(deadline, time.monotonic() + OPEN_SECONDS)
        sock = self._connected(order, deadline)
        channel = Channel(sock, self._decoder)
        try:
            self._greet(channel, order, deadline)
        except BaseException:
            channel.close()
            raise
        return channel

    def _connected(self, order: wire.FetchChunks, deadline: float) -> socket.socket:
        try:
            address = parse_address(order.address)
            ip = self._names.ip_of(address, deadline)
            sock = socket.create_connection((ip, address.port), max(0.001, deadline - time.monotonic()))
        except TimeoutError:
            raise NotReached("timeout", f"{order.node} at {order.address} cannot be reached in time") from None
        except (OSError, ValueError) as error:
            raise NotReached("connect", f"{order.node} at {order.address}: {error}") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return sock if self._tls is None else self._secured(sock, self._tls, order, deadline)
        except BaseException:
            sock.close()
            raise

    def _secured(
        self, sock: socket.socket, tls: ssl.SSLContext, order: wire.FetchChunks, deadline: float
    ) -> ssl.SSLSocket:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            secured = tls.wrap_socket(sock)
        except TimeoutError:
            raise NotReached("timeout", f"{order.node} at {order.address} does not end its TLS handshake") from None
        except OSError as error:
            raise NotReached("tls", f"{order.node} at {order.address}: {error}") from error
        name = certificate_name(secured.getpeercert())
        if name != order.node:
            secured.close()
            raise NotReached("identity", f"the certificate at {order.address} is of {name!r}, not of {order.node!r}")
        return secured

    def _greet(self, channel: Channel[peer.ToReader], order: wire.FetchChunks, deadline: float) -> None:
        try:
            channel.send(self._hello(order), deadline)
            answer = channel.receive(deadline)
        except LinkTimeout as error:
            raise NotReached("timeout", f"{order.node} does not welcome us: {error}") from error
        except LinkClosed as error:
            # With TLS 1.3 our certificate is refused when we are connected already, and without a word.
            hint = "; if it does not accept this worker's certificate, its log says why" if self._tls else ""
            reason: Reason = "tls" if isinstance(error.__cause__, ssl.SSLError) else "connect"
            raise NotReached(reason, f"{order.node} does not welcome us: {error}{hint}") from error
        except FrameRefused as error:
            raise NotReached("malformed", f"{order.node} answers the hello with no welcome: {error}") from error
        if isinstance(answer, peer.PeerRefused):
            kind: Reason = "busy" if answer.code == "busy" else "refused"
            raise NotReached(kind, f"{order.node} refused ({answer.code}): {answer.detail}")
        if not isinstance(answer, peer.PeerWelcome) or answer.node != order.node:
            raise NotReached("malformed", f"{order.node} answers the hello with {type(answer).__name__}")

    def _hello(self, order: wire.FetchChunks) -> peer.PeerHello:
        me = self._me
        standing = me.standing()
        return peer.PeerHello(
            protocol_min=peer.PROTOCOL_MIN,
            protocol_max=peer.PROTOCOL_MAX,
            version=me.version,
            cluster=me.cluster,
            cluster_uid=standing.cluster_uid,
            node=me.node,
            incarnation=standing.incarnation,
            to_node=order.node,
            to_incarnation=order.incarnation,
        )
