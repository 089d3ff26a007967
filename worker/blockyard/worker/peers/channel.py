"""One connection of the peer channel: frames, and the bytes of chunks between them.

Owns a connected socket, plain or with TLS. Every call has a deadline, in monotonic seconds, and after any error the
connection is of no further use. Nothing is read beyond what was asked for: what follows a frame goes straight to where
it belongs. One thread uses it at a time; `cut` is for all others.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
import xxhash

from blockyard.common.codec import PREFIX_BYTES, Decoder, encode, frame_size
from blockyard.common.link import LinkClosed, LinkTimeout
from blockyard.common.messages import peer

M = TypeVar("M")

_TIMEVAL = struct.Struct("@ll")

PIECE = 1 << 20
"""Bytes that are hashed while they are still in the processor's cache."""


class Channel(Generic[M]):
    """`decoder` is for the messages of the other side."""

    def __init__(self, sock: socket.socket, decoder: Decoder[M]) -> None:
        self._sock = sock
        self._decoder = decoder
        self._has_tls = isinstance(sock, ssl.SSLSocket)
        if not self._has_tls:
            # Deadlines are the kernel's, which so takes or gives a whole piece in one call.
            sock.settimeout(None)
        # A descriptor that was closed may be another connection's by now: cutting that would harm a stranger.
        self._closing = threading.Lock()
        self._closed = False
        self.last = b""
        """The frame that came last, whatever it was."""

    def accept_tls(self, context: ssl.SSLContext, deadline: float) -> Mapping[str, Any] | None:
        """From here on with TLS, as the side that was connected to; the peer's certificate. OSError if it fails."""
        with self._closing:
            secured = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
            self._sock, self._has_tls = secured, True
        secured.settimeout(_left(deadline))
        secured.do_handshake()
        return secured.getpeercert()

    def send(self, message: msgspec.Struct, deadline: float) -> None:
        """One message, whole."""
        self.send_bytes(memoryview(encode(message, peer.MAX_FRAME)), deadline)

    def receive(self, deadline: float) -> M:
        """The next message; FrameRefused if what comes is none."""
        prefix = bytearray(PREFIX_BYTES)
        self._fill(memoryview(prefix), deadline)
        payload = bytearray(frame_size(bytes(prefix), peer.MAX_FRAME))
        self._fill(memoryview(payload), deadline)
        self.last = bytes(payload)
        return self._decoder.decode(self.last)

    def send_bytes(self, view: memoryview, deadline: float) -> None:
        """All of these, as they lie there."""
        while view:
            try:
                self._limit(socket.SO_SNDTIMEO, deadline)
                view = view[self._sock.send(view) :]
            except (TimeoutError, BlockingIOError) as error:
                raise LinkTimeout("the peer does not take what it is sent") from error
            except (OSError, ValueError) as error:
                raise LinkClosed(f"the peer is gone: {error}") from error

    def receive_hashed(self, view: memoryview, deadline: float) -> int:
        """Fill this memory with what comes next; its xxh3-64."""
        hashed = xxhash.xxh3_64()
        while view:
            got = self._some(view[:PIECE], deadline)
            hashed.update(view[:got])
            view = view[got:]
        return hashed.intdigest()

    @property
    def quiet(self) -> bool:
        """Nothing has come that nobody asked for, the connection's end included."""
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def cut(self) -> None:
        """End it under the thread that uses it, whose call fails at once; that thread closes."""
        with self._closing, contextlib.suppress(OSError):
            if not self._closed:
                # Not SSLSocket's own, after which a read would give what came as it came, encrypted.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._closed = True
            self._sock.close()

    def _limit(self, option: int, deadline: float) -> None:
        """The next call ends by then."""
        left = _left(deadline)
        if self._has_tls:
            self._sock.settimeout(left)
        else:
            self._sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(left), int(left % 1 * 1e6) or 1))

    def _fill(self, view: memoryview, deadline: float) -> None:
        while view:
            view = view[self._some(view, deadline) :]

    def _some(self, view: memoryview, deadline: float) -> int:
        """At least one byte."""
        try:
            self._limit(socket.SO_RCVTIMEO, deadline)
            got = self._sock.recv_into(view, 0, 0 if self._has_tls else socket.MSG_WAITALL)
        except (TimeoutError, BlockingIOError) as error:
            raise LinkTimeout("the peer does not send") from error
        except (OSError, ValueError) as error:
            raise LinkClosed(f"the peer is gone: {error}") from error
        if not got:
            raise LinkClosed("the peer closed the connection")
        return got


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
