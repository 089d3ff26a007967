"""Frames on their way between a worker and a leader. Owns the order in which they wait; delivers nothing by itself.

Each frame is made by the production codec when it is sent, and read by it when it is delivered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from blockyard.common.codec import PREFIX_BYTES, Decoder, encode
from blockyard.common.messages import cluster

_UP: Decoder[cluster.FromWorker] = Decoder(cluster.FromWorker)
_DOWN: Decoder[cluster.ToWorker] = Decoder(cluster.ToWorker)


@dataclass(eq=False)
class Link:
    """One connection. Each end notices by itself that it is over."""

    number: int
    worker: str
    leader: str
    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    greeted: bool = False
    """The leader has heard the hello."""
    live: bool = False
    """The worker's core counts it as up."""
    worker_open: bool = True
    leader_open: bool = True

    def queue(self, upward: bool) -> deque[bytes]:
        return self.up if upward else self.down

    def send(self, upward: bool, message: msgspec.Struct) -> None:
        self.queue(upward).append(encode(message, cluster.MAX_FRAME))


def read_up(frame: bytes) -> cluster.FromWorker:
    """The message in a worker's frame."""
    return _UP.decode(frame[PREFIX_BYTES:])


def read_down(frame: bytes) -> cluster.ToWorker:
    """The message in a leader's frame."""
    return _DOWN.decode(frame[PREFIX_BYTES:])
