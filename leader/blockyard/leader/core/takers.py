"""Which workers can take chunks over from one that is drained. Owns who has just failed to; changes nothing else.

Only a worker that serves the same world is of use: it knows the chunks' shape, and its engines can load them.
"""

from collections.abc import Container

from blockyard.common.messages.cluster import TIER_DISK, TIER_HOST
from blockyard.leader.core.membership import Member, Membership
from blockyard.leader.core.neighbours import is_peer
from blockyard.leader.core.orders import OrderBook
from blockyard.leader.core.ownership import Ownership

SERVED = TIER_HOST | TIER_DISK
"""Tiers from which a worker can give a chunk away."""

PAUSE_S = 15.0
"""How long a worker that did not take all is left alone; others are tried meanwhile."""


class Takers:
    """`draining` names the nodes that are to be emptied."""

    def __init__(self, members: Membership, orders: OrderBook, draining: Container[str]) -> None:
        self._members = members
        self._orders = orders
        self._draining = draining
        self._paused: dict[str, float] = {}

    def stays(self, node: str | None) -> bool:
        """Whether what this node holds stays within reach."""
        member = self._members.by_node.get(node) if node is not None else None
        return member is not None and member.link is not None and member.node not in self._draining

    def any(self, kind: int, index: Ownership, source: str) -> bool:
        """Whether somebody could take chunks of this kind at all."""
        return any(self._fits(member, kind, index, source) for member in self._members)

    def best(self, now: float, kind: int, index: Ownership, source: str) -> str | None:
        """Who is to take the next ones: whoever has the least to do, and then the most room."""
        fitting = [
            member
            for member in self._members
            if self._fits(member, kind, index, source) and self._paused.get(member.node, now) <= now
        ]
        if not fitting:
            return None
        busy: dict[str, int] = {}
        for job in self._orders:
            if not job.over:
                busy[job.node] = busy.get(job.node, 0) + 1
        return min(fitting, key=lambda member: (busy.get(member.node, 0), -_free(member), member.node)).node

    def failed(self, now: float, node: str) -> None:
        """It did not take all that it was given."""
        self._paused = {one: until for one, until in self._paused.items() if until > now} | {node: now + PAUSE_S}

    def _fits(self, member: Member, kind: int, index: Ownership, source: str) -> bool:
        found = index.kinds.kind(kind)
        return (
            found is not None
            and member.node != source
            and self.stays(member.node)
            and is_peer(member)
            and member.claims.holder.knows(found.fingerprint)
        )


def _free(member: Member) -> int:
    stats = member.stats
    return stats.pool_bytes - stats.used_bytes if stats else 0
