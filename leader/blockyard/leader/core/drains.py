"""Moving off a worker what no other has: copies to others that can use it, before it goes. Owns the drains.

A drain goes over the index in passes, some keys per Tick. A pass counts the keys that only this worker holds, and has
them fetched by workers of the same world, some at a time, those that changed last first. Nothing is dropped. A drain
is done when nothing is left and the worker has said that it takes in nothing new; it ends only when it is taken back,
and looks again from time to time. It is of this term; the worker itself stays drained until it hears otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import MAX_MS
from blockyard.leader.core.journal import Journal
from blockyard.leader.core.membership import Member, Membership
from blockyard.leader.core.neighbours import is_peer
from blockyard.leader.core.orders import Job, OrderBook, takes_orders
from blockyard.leader.core.ownership import ALL_KINDS, HOLDER_SHIFT, SHARDS, TIER_BITS, Ownership, Placements
from blockyard.leader.core.takers import SERVED, Takers

LOOKED_AT = 20_000
"""Keys of the index that a drain looks at per Tick, in whole dicts."""

MAX_QUEUED = 65_536
"""Keys that wait to be copied; those beyond wait for the next pass."""

BATCH = 64
"""Keys of one copy order."""

IN_FLIGHT = 4
"""Copy orders of one drain at a time."""

COPY_S = 30.0
SETTLE_S = 0.5
"""After a pass that copied: the workers' deltas say what has arrived before the next one counts."""

REST_S = 5.0
"""After a pass in which nothing could be done."""

STANDING_S = MAX_MS / 1000


@dataclass(slots=True)
class Drain:
    """`left` and `unplaceable` are of the last whole pass, None before it."""

    node: str
    cause: str
    since: float
    order: Job | None = None
    ordered: tuple[int, str] = (0, "")
    """The incarnation and boot id that the order went to: another process has to be told anew."""
    copies: list[Job] = field(default_factory=list)
    queue: dict[Key, int] = field(default_factory=dict)
    shard: int = 0
    found: int = 0
    stranded: int = 0
    progress: bool = False
    rest_until: float = 0.0
    copied: int = 0
    left: int | None = None
    unplaceable: int | None = None
    state: str = "looking"
    reason: str = ""
    obstacle: str = ""
    """Why nothing can be done now; "" if it can."""

    @property
    def refused(self) -> bool:
        """The worker will not be drained."""
        return self.order is not None and self.order.state == "refused"


class Drains:
    """By node. `tick` does what is due."""

    def __init__(self, members: Membership, index: Ownership, orders: OrderBook, journal: Journal) -> None:
        self._members = members
        self._index = index
        self._orders = orders
        self._journal = journal
        self._next = 1
        self.by_node: dict[str, Drain] = {}
        self._takers = Takers(members, orders, self.by_node)

    def begin(self, now: float, node: str) -> Drain:
        """Drain this member from now on; one that is being drained goes on."""
        if node not in self.by_node:
            self.by_node[node] = Drain(node, f"drain {self._next}", now)
            self._next += 1
            self._queue_latest(self.by_node[node])
        return self.by_node[node]

    def end(self, now: float, node: str) -> None:
        """Take it back, also for a worker that an earlier leader drained."""
        drain = self.by_node.pop(node, None)
        if drain is not None:
            self._orders.withdraw(drain.cause)
        self._orders.give(Job(0, node, "undrain", now + COPY_S, f"undrain {node}"))

    def end_of_term(self) -> None:
        """Another leader knows of none."""
        self.by_node.clear()

    def tick(self, now: float, whole: bool) -> None:
        """Tell whoever has to know, look on, have copied. `whole`: what is held is all known."""
        for drain in list(self.by_node.values()):
            member = self._members.by_node.get(drain.node)
            if member is None:
                del self.by_node[drain.node]
                self._orders.withdraw(drain.cause)
                continue
            self._tell(now, drain, member)
            self._reap(now, drain)
            if not self._can_go_on(drain, member, whole) or now < drain.rest_until:
                continue
            self._look_on(drain, member)
            self._copy(now, drain)
            self._end_pass(now, drain)

    def _tell(self, now: float, drain: Drain, member: Member) -> None:
        life, order = (member.incarnation, member.info.boot_id), drain.order
        if order is None or (order.over and (drain.ordered != life or order.state == "expired")):
            if not takes_orders(member) or not self._orders.room:
                return
            drain.order = self._orders.give(Job(0, drain.node, "drain", now + STANDING_S, drain.cause))
        drain.ordered = life

    def _can_go_on(self, drain: Drain, member: Member, whole: bool) -> bool:
        """Whether it can be copied from this worker now; notes why not."""
        drain.obstacle = _obstacle(drain, member, whole)
        return not drain.obstacle

    def _queue_latest(self, drain: Drain) -> None:
        """What changed last is needed first."""
        member = self._members.by_node[drain.node]
        verdicts = _Verdicts(self._index, self._takers, member)
        for key in self._journal.recent(drain.node):
            kind = verdicts.only_here(self._index.placements(key))
            if kind is not None and verdicts.takeable(kind):
                drain.queue[key] = kind

    def _look_on(self, drain: Drain, member: Member) -> None:
        verdicts, budget = _Verdicts(self._index, self._takers, member), LOOKED_AT
        copying = {key for job in drain.copies for key in job.keys}
        while drain.shard < SHARDS and budget > 0:
            shard = self._index.shard(drain.shard)
            drain.shard += 1
            budget -= len(shard) + 1
            for key, kind in verdicts.all_of(shard.items()):
                drain.found += 1
                if not verdicts.takeable(kind):
                    drain.stranded += 1
                elif key not in copying and len(drain.queue) < MAX_QUEUED:
                    drain.queue[key] = kind

    def _copy(self, now: float, drain: Drain) -> None:
        while drain.queue and len(drain.copies) < IN_FLIGHT and self._orders.room:
            kind = next(iter(drain.queue.values()))
            found = self._index.kinds.kind(kind)
            keys = [key for key, of in list(drain.queue.items())[: 4 * BATCH] if of == kind][:BATCH]
            for key in keys:
                del drain.queue[key]
            taker = self._takers.best(now, kind, self._index, drain.node)
            if taker is None or found is None:
                continue
            job = Job(0, taker, "copy", now + COPY_S, drain.cause, keys, drain.node, found.fingerprint, found.group)
            drain.copies.append(self._orders.give(job))
            drain.state = "copying"

    def _reap(self, now: float, drain: Drain) -> None:
        for job in [job for job in drain.copies if job.over]:
            drain.copies.remove(job)
            drain.copied += job.count
            drain.progress = drain.progress or job.count > 0
            if job.state != "done" or job.left:
                self._takers.failed(now, job.node)

    def _end_pass(self, now: float, drain: Drain) -> None:
        if drain.shard < SHARDS or drain.queue or drain.copies:
            return
        drain.left, drain.unplaceable = drain.found, drain.stranded
        told = drain.order is not None and drain.order.heard
        if not drain.left and told:
            drain.state, drain.reason = "done", ""
        elif not drain.left:
            drain.state, drain.reason = "looking", "the worker has not said yet that it takes in nothing new"
        elif drain.progress:
            drain.state, drain.reason = "copying", ""
        else:
            drain.state = "stuck"
            drain.reason = (
                f"no other worker serves the worlds of {drain.unplaceable} chunks"
                if drain.unplaceable == drain.left
                else "no other worker takes more now"
            )
        drain.rest_until = now + (SETTLE_S if not told or (drain.left and drain.progress) else REST_S)
        drain.shard, drain.found, drain.stranded, drain.progress = 0, 0, 0, False


def _obstacle(drain: Drain, member: Member, whole: bool) -> str:
    if member.link is None:
        return "the worker has no link to the leader"
    if not takes_orders(member):
        return "the worker is of a release without orders"
    if drain.refused and drain.order is not None:
        return f"the worker refused: {drain.order.reason}"
    if not is_peer(member):
        return "the worker serves no peers"
    return "" if whole else "the leader does not know yet what all workers hold"


class _Verdicts:
    """Whether one worker alone holds a key, and others could take it; each shared tuple and kind is looked at once.

    Good for one step.
    """

    def __init__(self, index: Ownership, takers: Takers, member: Member) -> None:
        self._index = index
        self._takers = takers
        self._own = member.claims.holder.id
        self._node = member.node
        self._takeable: dict[int, bool] = {}
        self._known: dict[int, tuple[Placements, int | None]] = {}

    def only_here(self, held: Placements) -> int | None:
        """The kind of a chunk that nobody else has who stays; None if it need not be copied or cannot be named."""
        known = self._known.get(id(held))
        if known is None or known[0] is not held:
            known = self._known[id(held)] = (held, self._look(held))
        return known[1]

    def takeable(self, kind: int) -> bool:
        """Whether somebody could take chunks of this kind at all."""
        if kind not in self._takeable:
            self._takeable[kind] = self._takers.any(kind, self._index, self._node)
        return self._takeable[kind]

    def all_of(self, items: Iterable[tuple[Key, Placements]]) -> Iterator[tuple[Key, int]]:
        """The keys that are only here, with their kinds."""
        for key, held in items:
            kind = self.only_here(held)
            if kind is not None:
                yield key, kind

    def _look(self, held: Placements) -> int | None:
        kind = None
        for placement in held:
            holder = placement >> HOLDER_SHIFT
            if not placement & SERVED:
                continue
            if holder == self._own:
                kind = placement >> TIER_BITS & ALL_KINDS
            elif self._takers.stays(self._index.node_of(holder)):
                return None
        return kind
