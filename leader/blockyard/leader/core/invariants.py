"""What must hold after each event, each with a name. Owns the checks; changes nothing."""

from collections import Counter

from blockyard.common.digests import RollingDigests
from blockyard.common.errors import BlockyardError
from blockyard.common.fencing import Epoch
from blockyard.leader.core.membership import Membership
from blockyard.leader.core.orders import MAX_OPEN, MAX_SENT, OrderBook
from blockyard.leader.core.ownership import ALL_TIERS, HOLDER_SHIFT, Ownership
from blockyard.leader.core.settings import LeaderSettings
from blockyard.leader.core.turns import Turns


class InvariantBroken(BlockyardError):
    """A bug in the leader: `name` is the invariant, `detail` what was found."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"invariant {name} is broken: {detail}")
        self.name = name
        self.detail = detail


def check_members(members: Membership, index: Ownership, epoch: Epoch | None, settings: LeaderSettings) -> None:
    """Members, links and holders agree with one another."""
    for link, member in members.by_link.items():
        _require("one-link-per-member", member.link == link, f"link {link} leads to {member.node}, {member.link}")
        _require("claims-of-members", members.by_node.get(member.node) is member, f"{member.node} is replaced")
    linked = sum(member.link is not None for member in members)
    _require("one-link-per-member", linked == len(members.by_link), f"{linked} of {len(members.by_link)} links")
    _require("leader-only-links", epoch is not None or not members.links, f"{members.links} links, no epoch")
    count = len(members.by_node)
    _require("bounded-queues", count <= settings.max_workers, f"{count} members")
    _require("bounded-queues", members.links <= settings.max_workers, f"{members.links} links")
    for waiting in members.waiting.values():
        registered = members.by_node.get(waiting.hello.node)
        overtaken = registered is not None and registered.incarnation >= waiting.hello.incarnation
        _require("bounded-wait", not overtaken, f"{waiting.hello.node} waits for what is registered")

    known, shown = index.holders()
    wanted_shown = {member.claims.holder.id for member in members}
    _require("incarnation-scoped-claims", set(shown) == wanted_shown, f"{set(shown) ^ wanted_shown} are shown")
    collecting = {member.claims.collecting.holder.id for member in members if member.claims.collecting}
    _require("incarnation-scoped-claims", set(known) == wanted_shown | collecting, "a holder without an owner")
    for member in members:
        claims = member.claims
        _require("acks-are-of-applied", claims.acked <= claims.applied, f"{member.node}: ack {claims.acked}")
        _require("claims-need-a-link", not claims.collecting or member.link is not None, member.node)


def check_turns(turns: Turns, members: Membership, settings: LeaderSettings) -> None:
    """Turns and places in the queue belong to links of members, and nobody waits while a turn is free."""
    given, waiting = set(turns.given), set(turns.waiting)
    _require("bounded-queues", len(given) <= settings.snapshots_at_once, f"{len(given)} turns are given")
    _require("bounded-wait", not given & waiting, f"links {given & waiting} wait for the turn that they have")
    strangers = (given | waiting) - set(members.by_link)
    _require("bounded-queues", not strangers, f"links {strangers} are gone, their turns not")
    free = len(given) < settings.snapshots_at_once
    _require("bounded-wait", not (free and waiting), f"links {waiting} wait, though a turn is free")


def check_orders(orders: OrderBook, members: Membership, epoch: Epoch | None) -> None:
    """Orders are bounded, of this term, and under way only on links of members."""
    open_ = [job for job in orders if not job.over]
    _require("bounded-queues", len(open_) <= MAX_OPEN, f"{len(open_)} orders are open")
    _require("epoch-monotone", epoch is not None or not open_, f"{len(open_)} orders are open without a term")
    sent: Counter[str] = Counter()
    for job in open_:
        under_way = job.state == "sent"
        _require("idempotent-orders", under_way == (job.link is not None), f"job {job.number} is {job.state}")
        member = members.by_link.get(job.link) if job.link is not None else None
        _require(
            "idempotent-orders", not under_way or member is not None, f"job {job.number} is on a link that is gone"
        )
        sent[job.node] += under_way
    _require("bounded-queues", all(count <= MAX_SENT for count in sent.values()), f"{sent} are sent")


def check_books(index: Ownership) -> None:
    """Each key has sorted, distinct placements with a tier, and each holder counts its own."""
    known, _ = index.holders()
    copies: Counter[int] = Counter()
    for key, held in index.entries():
        holders = [placement >> HOLDER_SHIFT for placement in held]
        name = f"key {key.hex()} is held by {held}"
        _require("books-balance", bool(held) and all(placement & ALL_TIERS for placement in held), name)
        _require("one-visible-copy-per-key", holders == sorted(set(holders)), name)
        copies.update(holders)
    for number, holder in known.items():
        _require(
            "books-balance",
            holder.copies == copies[number],
            f"{holder.node} counts {holder.copies}, has {copies[number]}",
        )
    remains = set(copies) - set(known)
    _require("books-balance", not (index.swept and remains), f"holders {remains} are gone, their placements not")


def check_digests(index: Ownership) -> None:
    """Each holder's digests are those of what it has; takes longer than the other checks together."""
    known, _ = index.holders()
    digests = {number: RollingDigests() for number in known}
    for key, held in index.entries():
        for placement in held:
            if placement >> HOLDER_SHIFT in digests:
                digests[placement >> HOLDER_SHIFT].flip(key, placement & ALL_TIERS)
    for number, holder in known.items():
        true = digests[number].packed() == holder.digests.packed()
        _require("books-balance", true, f"the digests of {holder.node} are not those of what it has")


def _require(name: str, holds: bool, detail: str) -> None:
    if not holds:
        raise InvariantBroken(name, detail)
