"""One attached engine process: its socket, from Hello to the end.

Owns the transport, and what happens to a frame that is no message. Must never know what a message leads to:
that is asked of its `Owner`.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Protocol

import msgspec

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach
from blockyard.worker.handshake import send_with_descriptors

_LAST_WORDS_SECONDS = 2.0

_TAGS = frozenset(kind.__struct_config__.tag for kind in attach.FromEngine.__args__)


class Owner(Protocol):
    """What a link tells."""

    def message(self, session: int, message: attach.FromEngine) -> None: ...
    def frame_refused(self, session: int, reason: str, detail: str) -> None: ...
    def link_lost(self, session: int, reason: str) -> None: ...


class EngineLink(FrameProtocol[attach.FromEngine]):
    """The socket is open from the start; messages are taken only once `welcome` has been sent."""

    def __init__(self, session: int, sock: socket.socket, hello: attach.Hello, pid: int, owner: Owner) -> None:
        super().__init__(Decoder(attach.FromEngine), attach.MAX_FRAME)
        self.session = session
        self.hello = hello
        self.pid = pid
        self.asked = False
        """The session has been reported, so its end will be."""
        self._sock = sock
        self._owner = owner
        self._welcomed = False

    def welcome(self, message: attach.Welcome, descriptors: list[int]) -> None:
        """Accept; nothing was sent before, so the transport's buffer is empty and cannot be overtaken."""
        if not self.open:
            return
        try:
            send_with_descriptors(self._sock, message, descriptors)
        except OSError as error:
            self.abort(f"the welcome could not be sent: {error}")
            return
        self._welcomed = True

    def tell(self, message: msgspec.Struct) -> None:
        """Send, or learn by `link_lost` that the peer is gone."""
        with suppress(LinkClosed):
            self.send(message)

    def break_off(self, reason: str) -> None:
        """Say why, then close."""
        if self._welcomed:
            self.tell(attach.Closing(reason))
        self.end(reason)

    def end(self, reason: str) -> None:
        """Close after what was sent; a peer that does not read its last message is cut off after a while."""
        if not self.open:
            return
        self.close(reason)
        asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self.abort, reason)

    def received(self, message: attach.FromEngine) -> None:
        if self._welcomed:
            self._owner.message(self.session, message)
            return
        detail = f"{type(message).__name__} is not expected here"
        self._owner.frame_refused(self.session, "unexpected", detail)
        self.break_off(detail)

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        if error.reason == "malformed" and _is_unknown(payload):
            # The stream is in step and nothing was acted on.
            self._owner.frame_refused(self.session, "unknown", error.detail)
            return
        self._owner.frame_refused(self.session, error.reason, error.detail)
        self.break_off(str(error))

    def lost(self, reason: str) -> None:
        self._owner.link_lost(self.session, reason)


def _is_unknown(payload: bytes) -> bool:
    """A message by its form, of a kind that this version does not have."""
    try:
        content = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    named = isinstance(content, list) and bool(content) and isinstance(content[0], str)
    return named and content[0] not in _TAGS
