"""Framed links over streams: one for asyncio, one that blocks with deadlines.

Owns reading and writing of whole frames with bounds on time and on memory. Must never know what a message means.
"""

import asyncio
import socket
import time
from typing import Generic, TypeVar

import msgspec

from blockyard.common.codec import PREFIX_BYTES, Decoder, FrameBuffer, encode, frame_size
from blockyard.common.errors import BlockyardError

M = TypeVar("M")

MAX_UNSENT = 8 << 20
"""Bytes that may wait in a link's send buffer before its peer counts as stuck."""


class LinkClosed(BlockyardError):
    """The peer is gone, or the link was closed because the peer does not read."""


class LinkTimeout(BlockyardError):
    """A deadline passed. The link is of no further use: an answer may still be under way."""


class StreamLink(Generic[M]):
    """A framed link on asyncio streams. Sending never waits; a peer that does not read is cut off."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: Decoder[M],
        max_frame: int,
        max_unsent: int = MAX_UNSENT,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._max_frame = max_frame
        self._max_unsent = max_unsent

    def send(self, message: msgspec.Struct) -> None:
        """Queue one message; raises LinkClosed when the peer is gone or too far behind."""
        if self._writer.is_closing():
            raise LinkClosed("link is closed")
        unsent = self._writer.transport.get_write_buffer_size()
        if unsent > self._max_unsent:
            self._writer.transport.abort()
            raise LinkClosed(f"peer does not read: {unsent} bytes unsent, the limit is {self._max_unsent}")
        self._writer.write(encode(message, self._max_frame))

    async def receive(self, timeout: float | None = None) -> M:
        """Next message. Raises LinkClosed, LinkTimeout after `timeout` seconds, or FrameRefused.

        After FrameRefused("malformed") the stream is still in step and the next receive is valid.
        """
        try:
            async with asyncio.timeout(timeout):
                prefix = await self._reader.readexactly(PREFIX_BYTES)
                payload = await self._reader.readexactly(frame_size(prefix, self._max_frame))
        except TimeoutError as error:
            raise LinkTimeout(f"nothing received within {timeout} s") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise LinkClosed(f"peer closed the link: {error}") from error
        return self._decoder.decode(payload)

    def close(self) -> None:
        """Close after what is queued has been sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close now, dropping what is queued."""
        self._writer.transport.abort()


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
