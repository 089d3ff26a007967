"""Makes a leader's index wrong behind the back of its claims. Owns what can be wrong about one key."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

from blockyard.common.messages.cluster import TIER_DISK, TIER_HOST, Change
from blockyard.leader.core.ownership import ALL_TIERS, HOLDER_SHIFT

if TYPE_CHECKING:
    from sim.leader_node import LeaderNode


def corrupt(leader: LeaderNode, place: float, size: float) -> bool:
    """Add a key to what one worker is said to hold, or give one other tiers, or lose one; as `size` says. False if no
    worker's claims are known.
    """
    members = [member for member in leader.core.members if member.claims.based]
    if not members:
        return False
    member = members[int(place * len(members))]
    holder = member.claims.holder
    held = [
        (key, placement & ALL_TIERS)
        for key, placements in leader.core.index.entries()
        for placement in placements
        if placement >> HOLDER_SHIFT == holder.id
    ]
    if not held or size < 1 / 3:
        key, tiers = hashlib.sha256(struct.pack("d", place)).digest(), TIER_HOST
    else:
        key, right = held[int(size * 1000) % len(held)]
        tiers = right ^ TIER_DISK if size < 2 / 3 else 0
    leader.core.index.apply(holder, [Change(key, tiers, 0, 0, 0)])
    leader.drifted.add(member.node)
    return True
