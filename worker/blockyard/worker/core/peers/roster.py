"""Who the peers are, and which of them are left alone for a while. Owns a breaker for each; asks nobody for anything.

A peer that is left alone is tried again by the first fetch that is due then: there is nothing else that would show
whether it works.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from blockyard.common.messages import cluster
from blockyard.worker.core.breaker import Breaker


@dataclass(slots=True, eq=False)
class Peer:
    """One life of another worker."""

    node: str
    incarnation: int
    address: str
    breaker: Breaker = field(default_factory=Breaker)


class Roster:
    """The peers by node, as the leader named them last. They stand when the leader is gone."""

    def __init__(self) -> None:
        self.by_node: dict[str, Peer] = {}

    def known(self, peers: Iterable[cluster.Peer]) -> None:
        """These are all. One that has not changed keeps what is known of its faults."""
        before, self.by_node = self.by_node, {}
        for one in peers:
            old = before.get(one.node)
            same = old is not None and (old.incarnation, old.address) == (one.incarnation, one.address)
            self.by_node[one.node] = old if old is not None and same else Peer(one.node, one.incarnation, one.address)

    def usable(self, node: str, now: float) -> Peer | None:
        """The peer of this name, unless it is left alone."""
        peer = self.by_node.get(node)
        if peer is None or not (peer.breaker.closed or peer.breaker.due(now)):
            return None
        return peer

    @property
    def left_alone(self) -> int:
        """Peers that are not used at the moment."""
        return sum(not peer.breaker.closed for peer in self.by_node.values())
