"""A framed link for threads, each call with a deadline or without any wait; see frame_protocol for one on asyncio.

Owns reading and writing of whole frames with bounds on time and on memory. Must never know what a message means.
"""

import socket
import time
from typing import Generic, TypeVar

import msgspec

from blockyard.common.codec import Decoder, FrameBuffer, encode
from blockyard.common.errors import BlockyardError

M = TypeVar("M")


class LinkClosed(BlockyardError):
    """The peer is gone, or the link was closed because the peer does not read."""


class LinkTimeout(BlockyardError):
    """A deadline passed. The link is of no further use: an answer may still be under way."""


class BlockingLink(Generic[M]):
    """A framed link for threads without an event loop; not thread-safe, each call with a deadline."""

    def __init__(self, sock: socket.socket, decoder: Decoder[M], max_frame: int) -> None:
        self._sock = sock
        self._decoder = decoder
        self._max_frame = max_frame
        self._frames = FrameBuffer(max_frame)
        self._ready: list[bytes] = []

    def fileno(self) -> int:
        """Descriptor of the socket, for select; -1 once closed."""
        return self._sock.fileno()

    def send(self, message: msgspec.Struct, timeout: float) -> None:
        """Send one message whole within `timeout` seconds, else LinkTimeout (and the link is of no further use)."""
        self._sock.settimeout(timeout)
        try:
            self._sock.sendall(encode(message, self._max_frame))
        except TimeoutError as error:
            raise LinkTimeout(f"not sent within {timeout} s: the peer does not read") from error
        except OSError as error:
            raise LinkClosed(f"peer is gone: {error}") from error

    def offer(self, data: bytes | bytearray) -> int:
        """Send what the socket takes at once of these whole frames; how many bytes that was."""
        self._sock.settimeout(0.0)
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkClosed(f"peer is gone: {error}") from error

    def receive(self, timeout: float) -> M:
        """Next message within `timeout` seconds (0: only what has already arrived), else LinkTimeout."""
        deadline = time.monotonic() + timeout
        while not self._ready:
            left = max(0.0, deadline - time.monotonic())
            self._sock.settimeout(left)
            try:
                data = self._sock.recv(1 << 16)
            except (TimeoutError, BlockingIOError) as error:
                raise LinkTimeout(f"nothing received within {timeout} s") from error
            except OSError as error:
                raise LinkClosed(f"peer is gone: {error}") from error
            if not data:
                raise LinkClosed("peer closed the link")
            self._ready.extend(self._frames.feed(data))
        return self._decoder.decode(self._ready.pop(0))

    def close(self) -> None:
        """Close the socket; safe to call again."""
        self._sock.close()
