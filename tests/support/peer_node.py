"""A worker core with peers, driven by hand: what it asks the leader, fetches and serves, as a test answers it.

Owns which tries of fetches are under way, and that each ends once.
"""

from __future__ import annotations

from typing import Any

from blockyard.common.fencing import Epoch
from blockyard.common.messages import cluster
from blockyard.common.messages.cluster import TIER_HOST, Span
from blockyard.worker.core import events, instructions
from blockyard.worker.core.peers import wire
from blockyard.worker.core.peers.settings import PeerSettings
from support.disk_device import DiskNode
from support.worker_core_leader import UID

_FREELY = {"fetching_share": 1.0, "locate_wait": 0.5}


class PeerNode(DiskNode):
    """A node whose leader names `peers`, with disks if there are `directories`."""

    def __init__(
        self,
        slots: int = 8,
        directories: int = 0,
        peers: tuple[str, ...] = ("n2", "n3", "n4"),
        limits: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.tries: dict[int, tuple[wire.FetchChunks, wire.FetchItem]] = {}
        self.cancelled: list[int] = []
        self.asked: list[cluster.Locate] = []
        self.served: list[wire.ServeChunks] = []
        limited = PeerSettings(enabled=True, **(_FREELY | (limits or {})))
        super().__init__(slots, directories=directories, peers=limited, **settings)
        self.do(events.Incarnated(1))
        self.link(peers)

    def link(self, peers: tuple[str, ...] = ("n2", "n3", "n4")) -> None:
        self.do(events.LinkUp(Epoch(UID, 1), 0))
        self.name(*peers)

    def name(self, *peers: str) -> None:
        """The leader says who the peers are."""
        self.do(wire.PeersKnown([cluster.Peer(node, 1, f"{node}:1") for node in peers]))

    def do(self, event: Any) -> list[instructions.Instruction]:
        out = super().do(event)
        for one in out:
            match one:
                case wire.FetchChunks(items=items):
                    assert not {item.op for item in items} & self.tries.keys()
                    self.tries |= {item.op: (one, item) for item in items}
                case wire.CancelFetches(ops):
                    self.cancelled += ops
                case wire.ServeChunks():
                    self.served.append(one)
                case instructions.Publish(messages):
                    self.asked += [message for message in messages if isinstance(message, cluster.Locate)]
        return out

    def answer(self, *spans: tuple[int, int, str], whole: bool = True) -> list[instructions.Instruction]:
        """The leader answers the last question, all of it in host memory."""
        told = [Span(first, count, node, TIER_HOST) for first, count, node in spans]
        return self.do(wire.Located(self.asked[-1].number, whole, told))

    @property
    def fetching(self) -> dict[bytes, str]:
        """What is asked of whom now."""
        return {item.key: batch.node for batch, item in self.tries.values()}

    def read(self, key: bytes) -> list[instructions.Instruction]:
        """The chunk has come."""
        op, areas = self._end(key)
        return self.do(wire.PeerRead(op, tuple(range(areas))))

    def fail(self, key: bytes, reason: wire.FetchFault) -> list[instructions.Instruction]:
        op, _ = self._end(key)
        return self.do(wire.PeerFailed(op, reason))

    def _end(self, key: bytes) -> tuple[int, int]:
        op = next(op for op, (_, item) in self.tries.items() if item.key == key)
        batch, _ = self.tries.pop(op)
        return op, batch.areas
