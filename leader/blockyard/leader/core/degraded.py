"""What makes answers less than whole now, for the faces. Owns the words; changes nothing."""

from blockyard.leader.core.membership import Membership
from blockyard.leader.core.overflow import Overflow
from blockyard.leader.core.turns import Turns
from blockyard.leader.core.views import Degradation


def degradations(
    members: Membership, overflow: Overflow, turns: Turns, unlisted_since: float | None, max_workers: int
) -> list[Degradation]:
    """Each reason, and since when."""
    found = []
    if unlisted_since is not None:
        found.append(Degradation("membership", "etcd's list of workers is not read yet", unlisted_since))
    if overflow.since is not None:
        detail = f"{len(overflow)} workers are registered beyond max_workers = {max_workers}"
        found.append(Degradation("workers-ignored", detail, overflow.since))
    for member in members:
        if member.link is None:
            found.append(Degradation("worker-lost", f"worker {member.node} has no link", member.since))
        elif member.behind_since is not None:
            detail = f"worker {member.node} owes a part of its claims"
            if member.link in turns.waiting:
                detail += "; it waits to send its snapshot"
            found.append(Degradation("worker-partial", detail, member.behind_since))
    return found
