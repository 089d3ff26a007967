"""Which orders bring some keys into one worker's host memory. Reads and suggests; gives no order itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import MAX_LOCATED, TIER_DISK, TIER_HOST
from blockyard.leader.core.kinds import ChunkKind
from blockyard.leader.core.membership import Member, Membership
from blockyard.leader.core.neighbours import is_peer
from blockyard.leader.core.orders import Job
from blockyard.leader.core.ownership import ALL_KINDS, HOLDER_SHIFT, TIER_BITS, Ownership, Placements


@dataclass(slots=True)
class Plan:
    """Keys that are `ready`, on the worker's own disk, to be copied by (peer, kind), or not to be had."""

    ready: int = 0
    missing: int = 0
    promote: list[Key] = field(default_factory=list)
    copy: dict[tuple[str, ChunkKind], list[Key]] = field(default_factory=dict)

    def jobs(self, node: str, deadline: float, cause: str) -> list[Job]:
        """The orders of it."""
        jobs = [Job(0, node, "promote", deadline, cause, keys=keys) for keys in _pieces(self.promote)]
        for (source, kind), keys in self.copy.items():
            for piece in _pieces(keys):
                jobs.append(Job(0, node, "copy", deadline, cause, piece, source, kind.fingerprint, kind.group))
        return jobs


def plan(
    members: Membership, index: Ownership, listed: Callable[[Key], Placements], member: Member, keys: Sequence[Key]
) -> Plan:
    """What is to be done for each key, once."""
    made, last = Plan(), ""
    for key in dict.fromkeys(keys):
        held = listed(key)
        own = next((one for one in held if one >> HOLDER_SHIFT == member.claims.holder.id), 0)
        if own & TIER_HOST:
            made.ready += 1
        elif own & TIER_DISK:
            made.promote.append(key)
        elif (source := _source(members, index, member, held, last)) is not None:
            made.copy.setdefault(source, []).append(key)
            last = source[0]
        else:
            made.missing += 1
    return made


def _source(
    members: Membership, index: Ownership, member: Member, held: Placements, last: str
) -> tuple[str, ChunkKind] | None:
    """Whom to copy from: the one before if it serves, since one order may then do; host memory before disk."""
    best = None
    for placement in held:
        node, kind = index.node_of(placement >> HOLDER_SHIFT), index.kinds.kind(placement >> TIER_BITS & ALL_KINDS)
        other = members.by_node.get(node) if node is not None else None
        if other is None or other is member or kind is None or not is_peer(other):
            continue
        if not placement & (TIER_HOST | TIER_DISK):
            continue
        rank = (not placement & TIER_HOST, other.node != last)
        if best is None or rank < best[0]:
            best = (rank, (other.node, kind))
    return best[1] if best else None


def _pieces(keys: list[Key]) -> list[list[Key]]:
    return [keys[start : start + MAX_LOCATED] for start in range(0, len(keys), MAX_LOCATED)]
