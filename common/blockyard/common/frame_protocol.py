"""A framed link as an asyncio protocol: callbacks instead of streams, for links where each µs counts.

Owns cutting, decoding and sending of frames on one transport, and cutting off a peer that does not read. Must
never know what a message means. Against asyncio's streams it saves a task switch per message.
"""

import asyncio
from abc import abstractmethod
from typing import Generic, TypeVar, cast

import msgspec

from blockyard.common.codec import Decoder, FrameBuffer, FrameRefused, encode
from blockyard.common.link import LinkClosed

M = TypeVar("M")

MAX_UNSENT = 8 << 20
"""Bytes that may wait in a link's send buffer before its peer counts as stuck."""


class FrameProtocol(asyncio.Protocol, Generic[M]):
    """Subclass and answer `received`, `refused` and `lost`; each is called from the event loop's thread."""

    def __init__(self, decoder: Decoder[M], max_frame: int, max_unsent: int = MAX_UNSENT) -> None:
        self._decoder = decoder
        self._max_frame = max_frame
        self._max_unsent = max_unsent
        self._frames = FrameBuffer(max_frame)
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self._lost = False

    @abstractmethod
    def received(self, message: M) -> None:
        """One whole, well-formed message."""

    @abstractmethod
    def refused(self, error: FrameRefused, payload: bytes) -> None:
        """A frame that is no message. After "malformed" the stream is in step, else it is lost: close."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The link is over; called once, also after `close` and `abort`."""

    @property
    def open(self) -> bool:
        """True while messages can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: msgspec.Struct) -> None:
        """Queue one message; raises LinkClosed when the peer is gone or too far behind."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise LinkClosed("link is closed")
        unsent = transport.get_write_buffer_size()
        if unsent > self._max_unsent:
            self.abort(f"peer does not read: {unsent} bytes unsent, the limit is {self._max_unsent}")
            raise LinkClosed(self._reason)
        transport.write(encode(message, self._max_frame))

    def close(self, reason: str) -> None:
        """Close after what is queued has been sent; nothing more is received."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close now, dropping what is queued."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                if not self.open:
                    return
                self._decode(payload)
        except FrameRefused as error:
            self.refused(error, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self.lost(self._reason or (f"{exc}" if exc else "peer closed the link"))

    def _decode(self, payload: bytes) -> None:
        try:
            message = self._decoder.decode(payload)
        except FrameRefused as error:
            self.refused(error, payload)
        else:
            self.received(message)
