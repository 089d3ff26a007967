"""What a leader says on one connection: the welcome, which is awaited, and later messages, which are handed on.

Owns which message may come when. Must never know how the connection came about, nor what becomes of it.
"""

import asyncio
import time
from collections.abc import Callable

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.messages import cluster
from blockyard.worker.core import events
from blockyard.worker.core.peers import wire as peers

_MOST_EARLY = 64
"""Messages that may come right behind the welcome."""


class LeaderConnection(FrameProtocol[cluster.ToWorker]):
    """Sorts what the leader says into a welcome (awaited) and later messages (handed on)."""

    def __init__(self, feed: Callable[[events.Event], None], frame_refused: Callable[[str], None]) -> None:
        super().__init__(Decoder(cluster.ToWorker), cluster.MAX_FRAME)
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[cluster.LinkWelcome | cluster.LinkRefused] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self.heard = time.monotonic()
        self._feed = feed
        self._frame_refused = frame_refused
        self._early: list[cluster.ToWorker] = []
        self.up = False

    def received(self, message: cluster.ToWorker) -> None:
        self.heard = time.monotonic()
        match message:
            case cluster.LinkWelcome() | cluster.LinkRefused() if not self.answer.done():
                self.answer.set_result(message)
            case cluster.Pong():
                pass
            case cluster.Ack(seq) if self.up:
                self._feed(events.LinkAcked(seq))
            case cluster.Resync(from_seq) if self.up:
                self._feed(events.ResyncAsked(from_seq))
            case cluster.SnapshotCredit(seq, parts) if self.up:
                self._feed(events.SnapshotCredited(seq, parts))
            case cluster.Repair(buckets) if self.up:
                self._feed(events.RepairAsked(buckets))
            case cluster.Peers(known) if self.up:
                self._feed(peers.PeersKnown(known))
            case cluster.Located(number, whole, spans) if self.up:
                self._feed(peers.Located(number, whole, spans))
            case cluster.Order() if self.up:
                self._feed(peers.Ordered(message))
            case cluster.Peers() | cluster.Order() if self.answer.done() and len(self._early) < _MOST_EARLY:
                self._early.append(message)
            case _:
                self._frame_refused("unexpected")
                self.abort(f"the leader sent {type(message).__name__} where it is not expected")

    def catch_up(self) -> None:
        """The link is up: take in what came right behind the welcome."""
        for message in self._early:
            self.received(message)

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        self._frame_refused(error.reason)
        self.abort(str(error))

    def lost(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)
