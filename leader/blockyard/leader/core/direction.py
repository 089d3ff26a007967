"""What the leader has workers do: who knows whom, and the orders that requests of people come to.

Owns the parts that give orders, and when each is heard. Must never know how a request came in, and changes nothing of
what members claim.
"""

from collections.abc import Callable

from blockyard.common.identity import Fingerprint
from blockyard.common.messages import cluster as wire
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core import prefetching
from blockyard.leader.core.drains import Drains
from blockyard.leader.core.instructions import Instruction
from blockyard.leader.core.journal import Journal
from blockyard.leader.core.locating import Locating
from blockyard.leader.core.membership import Member, Membership
from blockyard.leader.core.neighbours import Neighbours, is_peer
from blockyard.leader.core.orders import OrderBook, takes_orders
from blockyard.leader.core.ownership import Ownership
from blockyard.leader.core.purges import MAX_KEYS, MAX_PURGES, Purges
from blockyard.leader.core.requests import (
    Accepted,
    Answer,
    Denied,
    DrainAsked,
    Prefetch,
    PurgeAsked,
    Request,
    UndrainAsked,
)

MAX_DRAINS = 64
"""Workers that are drained at a time."""

_SHOWN = 5


class Direction:
    """`whole` says whether all that is held is known."""

    def __init__(
        self, members: Membership, index: Ownership, journal: Journal, whole: Callable[[], bool], counters: Counters
    ) -> None:
        self._members = members
        self._counters = counters
        self._index = index
        self._whole = whole
        self._neighbours = Neighbours(members)
        self._prefetches = 0
        self.orders = OrderBook(members, counters)
        self.purges = Purges(members, index, self.orders)
        self.drains = Drains(members, index, self.orders, journal)

    def linked(self, link: int) -> None:
        """A link was welcomed."""
        self._neighbours.linked(link)

    def ended(self, link: int) -> None:
        """A link is gone."""
        self._neighbours.ended(link)
        self.orders.link_lost(link)

    def end_of_term(self) -> None:
        """This process leads no more: nothing it has ordered counts."""
        self.orders.end_of_term()
        self.purges.end_of_term()
        self.drains.end_of_term()

    def tick(self, now: float) -> list[Instruction]:
        """What is due."""
        self.orders.expire(now)
        self.purges.tick(now)
        self.drains.tick(now, self._whole())
        return self._neighbours.tick() + self.orders.due(now)

    def locate(self, member: Member, question: wire.Locate) -> wire.Located:
        """Who else holds these keys."""
        self._counters.add("blockyard_leader_located_keys_total", len(question.keys))
        locating = Locating(self._peer, member.claims.holder.id)
        spans = locating.spans(self.purges.listed, question.keys, question.prefix)
        return wire.Located(question.number, self._whole(), spans)

    def ask(self, now: float, request: Request) -> Answer:
        """What people want done; orders that it comes to go out with `orders.due`."""
        match request:
            case Prefetch():
                return self._prefetch(now, request)
            case PurgeAsked():
                return self._purge(now, request)
            case DrainAsked(node):
                return self._drain(now, node)
            case UndrainAsked(node):
                return self._undrain(now, node)

    def _peer(self, holder: int) -> str | None:
        node = self._index.node_of(holder)
        member = self._members.by_node.get(node) if node is not None else None
        return member.node if member is not None and is_peer(member) else None

    def _prefetch(self, now: float, request: Prefetch) -> Answer:
        member = self._members.by_node.get(request.node)
        if (denied := self._cannot_order(request.node, member)) is not None or member is None:
            return denied or _stranger(request.node)
        found = prefetching.plan(self._members, self._index, self.purges.listed, member, request.keys)
        self._prefetches += 1
        cause = f"prefetch {self._prefetches}"
        jobs = found.jobs(request.node, now + request.seconds, cause)
        if len(jobs) > self.orders.room:
            return _busy(f"{len(jobs)} orders are needed, there is room for {self.orders.room}")
        for job in jobs:
            self.orders.give(job)
        promoted, copied = len(found.promote), sum(map(len, found.copy.values()))
        counts = (("ready", found.ready), ("promote", promoted), ("copy", copied), ("missing", found.missing))
        return Accepted(cause, counts)

    def _purge(self, now: float, request: PurgeAsked) -> Answer:
        fingerprints = [request.fingerprint] if request.fingerprint else []
        if request.model:
            models = self._models()
            fingerprints = sorted(models.get(request.model[: wire.MAX_SHORT], ()))
            if not fingerprints:
                known = ", ".join(sorted(models)[:_SHOWN]) or "none"
                return Denied("unknown", f"model {request.model!r}: no worker serves it; known are: {known}")
        if not self.purges.room(len(request.keys)):
            return _busy(f"{MAX_PURGES} purges and {MAX_KEYS} keys may be under way")
        purge = self.purges.begin(now, now + request.seconds, fingerprints, request.keys)
        counts = (("fingerprints", len(fingerprints)), ("keys", len(purge.keys)), ("workers", len(purge.jobs)))
        return Accepted(purge.cause, counts)

    def _drain(self, now: float, node: str) -> Answer:
        member = self._members.by_node.get(node)
        if (denied := self._cannot_order(node, member)) is not None:
            return denied
        if node not in self.drains.by_node and len(self.drains.by_node) >= MAX_DRAINS:
            return _busy(f"{MAX_DRAINS} workers are being drained")
        return Accepted(self.drains.begin(now, node).cause)

    def _undrain(self, now: float, node: str) -> Answer:
        member = self._members.by_node.get(node)
        if (denied := self._cannot_order(node, member)) is not None:
            return denied
        if not self.orders.room:
            return _busy("as many orders as there may be are open")
        self.drains.end(now, node)
        return Accepted(f"undrain {node}")

    def _cannot_order(self, node: str, member: Member | None) -> Denied | None:
        if member is None:
            return _stranger(node)
        if member.link is None:
            return Denied("conflict", f"worker {node} has no link to the leader now")
        if not takes_orders(member):
            return Denied("conflict", f"worker {node} is of release {member.info.version}, which takes no orders")
        return None

    def _models(self) -> dict[str, set[Fingerprint]]:
        models: dict[str, set[Fingerprint]] = {}
        for member in self._members:
            for world in member.claims.worlds.values():
                models.setdefault(world.model, set()).add(world.fingerprint)
        return models


def _stranger(node: str) -> Denied:
    return Denied("unknown", f"worker {node!r} is not registered; GET /v1/workers lists those that are")


def _busy(detail: str) -> Denied:
    return Denied("busy", f"{detail}; ask again later")
