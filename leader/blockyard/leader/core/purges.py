"""What was purged and may still be claimed. Owns the purges that are under way; must never know how a worker purges.

A worker that has not said that it is done may tell of a purged chunk in a delta that was under way, or in a snapshot.
What it claims of purged chunks is therefore not listed until its order is done, and a moment more. What a worker
claims later has been stored anew. A purge ends when all have done so, or with its deadline: what a worker claims that
was away until then is listed, and the job of it says that it expired.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from blockyard.common.identity import Fingerprint, Key
from blockyard.common.messages.cluster import MAX_LOCATED
from blockyard.leader.core.membership import Membership
from blockyard.leader.core.orders import Job, OrderBook
from blockyard.leader.core.ownership import ALL_KINDS, HOLDER_SHIFT, NOBODY, TIER_BITS, Ownership, Placements

MAX_PURGES = 64
MAX_KEYS = 65_536
"""Purges, and keys of all of them, that may be under way at a time; a further purge is refused."""

LATE_CLAIMS_S = 5.0
"""How long after a worker's last report its claims on what was purged may be of before."""


@dataclass(slots=True)
class Purge:
    """One purge: of these keys, or of all chunks of these fingerprints."""

    cause: str
    deadline: float
    fingerprints: tuple[Fingerprint, ...]
    keys: frozenset[Key]
    jobs: dict[str, list[Job]] = field(default_factory=dict)
    """By node: what it was ordered."""
    done_at: dict[str, float] = field(default_factory=dict)
    """By node: when it had done all of that."""
    believed: set[str] = field(default_factory=set)
    """Nodes whose claims count again."""

    @property
    def messages(self) -> int:
        """Orders to each worker."""
        return len(self.fingerprints) + -(-len(self.keys) // MAX_LOCATED)


class Purges:
    """`tick` gives the orders; `listed` is what is left of a key's placements."""

    def __init__(self, members: Membership, index: Ownership, orders: OrderBook) -> None:
        self._members = members
        self._index = index
        self._orders = orders
        self._next = 1
        self._under_way: list[Purge] = []

    def room(self, keys: int) -> bool:
        """Whether a purge of so many keys can be taken on."""
        held = sum(len(purge.keys) for purge in self._under_way)
        return len(self._under_way) < MAX_PURGES and held + keys <= MAX_KEYS

    def begin(self, now: float, deadline: float, fingerprints: Sequence[Fingerprint], keys: Sequence[Key]) -> Purge:
        """Take a purge on. The caller has looked whether there is room."""
        purge = Purge(f"purge {self._next}", deadline, tuple(fingerprints), frozenset(keys))
        self._next += 1
        self._under_way.append(purge)
        self.tick(now)
        return purge

    def tick(self, now: float) -> None:
        """Order what each member has not been ordered, also one that has just come; let go of what is over."""
        for purge in list(self._under_way):
            for member in self._members:
                if member.node not in purge.jobs and self._orders.room >= purge.messages and now < purge.deadline:
                    purge.jobs[member.node] = self._ordered(purge, member.node)
            self._settle(now, purge)
            if now >= purge.deadline or all(member.node in purge.believed for member in self._members):
                self._under_way.remove(purge)

    def end_of_term(self) -> None:
        """The orders are void, and with them what was not believed."""
        self._under_way.clear()

    def listed(self, key: Key) -> Placements:
        """The key's placements but for claims on what was purged."""
        held = self._index.placements(key)
        if not self._under_way or not held:
            return held
        for purge in self._under_way:
            if key in purge.keys:
                held = tuple(one for one in held if self._node(one) in purge.believed)
            elif purge.fingerprints:
                held = self._without(purge, held)
        return held or NOBODY

    def _without(self, purge: Purge, held: Placements) -> Placements:
        numbers = {number for one in purge.fingerprints for number in self._index.kinds.of(one)}
        if not any(one >> TIER_BITS & ALL_KINDS in numbers for one in held):
            return held
        return tuple(
            one for one in held if one >> TIER_BITS & ALL_KINDS not in numbers or self._node(one) in purge.believed
        )

    def _node(self, placement: int) -> str | None:
        return self._index.node_of(placement >> HOLDER_SHIFT)

    def _ordered(self, purge: Purge, node: str) -> list[Job]:
        jobs = [
            Job(0, node, "purge", purge.deadline, purge.cause, fingerprint=fingerprint)
            for fingerprint in purge.fingerprints
        ]
        keys = sorted(purge.keys)
        for start in range(0, len(keys), MAX_LOCATED):
            jobs.append(Job(0, node, "purge", purge.deadline, purge.cause, keys=keys[start : start + MAX_LOCATED]))
        return [self._orders.give(job) for job in jobs]

    def _settle(self, now: float, purge: Purge) -> None:
        """Note since when a worker that is done may be believed again; one that refused never is in this purge."""
        for node, jobs in purge.jobs.items():
            if node not in purge.done_at and all(job.state == "done" for job in jobs):
                purge.done_at[node] = now
            if now - purge.done_at.get(node, now) >= LATE_CLAIMS_S:
                purge.believed.add(node)
