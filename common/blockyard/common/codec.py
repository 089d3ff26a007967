"""Messages to frames and back: length-prefixed MessagePack.

Owns the frame format (4-byte little-endian length, then one MessagePack value) and its limits. Must never touch a
socket: it is fed bytes and gives bytes, so that the simulator runs it unchanged.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from blockyard.common.errors import BlockyardError

PREFIX_BYTES = 4

M = TypeVar("M")


class FrameRefused(BlockyardError):
    """A frame that may not be acted on. `reason` is a bounded word for metrics: oversize, empty or malformed."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"frame refused ({reason}): {detail}")
        self.reason = reason
        self.detail = detail


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct, max_frame: int) -> bytes:
    """One frame of `message`; raises FrameRefused when it is larger than `max_frame` bytes."""
    buffer = bytearray(PREFIX_BYTES)
    _encoder.encode_into(message, buffer, PREFIX_BYTES)
    size = len(buffer) - PREFIX_BYTES
    if size > max_frame:
        raise FrameRefused("oversize", f"{type(message).__name__} takes {size} bytes, the limit is {max_frame}")
    buffer[:PREFIX_BYTES] = size.to_bytes(PREFIX_BYTES, "little")
    return bytes(buffer)


def frame_size(prefix: bytes, max_frame: int) -> int:
    """Payload length that a prefix announces; raises FrameRefused when out of range."""
    size = int.from_bytes(prefix, "little")
    if size == 0:
        raise FrameRefused("empty", "length prefix is 0")
    if size > max_frame:
        raise FrameRefused("oversize", f"length prefix says {size} bytes, the limit is {max_frame}")
    return size


class Decoder(Generic[M]):
    """Typed decoder for one direction of one channel; `kinds` is the union of its message types."""

    def __init__(self, kinds: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kinds)

    def decode(self, payload: bytes | memoryview) -> M:
        """The message of one frame's payload; raises FrameRefused when it is not one."""
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise FrameRefused("malformed", str(error)) from error


class FrameBuffer:
    """Cuts a byte stream into frame payloads; holds at most one frame and what arrived with it."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Payloads that `data` completes; raises FrameRefused at a bad length, after which the stream is lost."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= PREFIX_BYTES:
                size = frame_size(bytes(self._data[start : start + PREFIX_BYTES]), self._max_frame)
                end = start + PREFIX_BYTES + size
                if len(self._data) < end:
                    break
                yield bytes(self._data[start + PREFIX_BYTES : end])
                start = end
        finally:
            del self._data[:start]
