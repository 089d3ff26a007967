"""Whether a hello may become a link. Owns the reasons to refuse one; changes nothing."""

from blockyard.common.fencing import Epoch
from blockyard.common.messages.cluster import PROTOCOL_MAX, PROTOCOL_MIN, LinkRefused, WorkerHello
from blockyard.leader.core.settings import LeaderSettings


def refusal(hello: WorkerHello, epoch: Epoch | None, links: int, settings: LeaderSettings) -> LinkRefused | None:
    """Why this hello cannot be accepted whatever is registered; None if it can."""
    if hello.protocol_min > PROTOCOL_MAX or hello.protocol_max < PROTOCOL_MIN:
        return LinkRefused(
            "version",
            f"leader {settings.version} speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, "
            f"worker {hello.node} {hello.version} speaks {hello.protocol_min} to {hello.protocol_max}",
        )
    if hello.cluster != settings.cluster:
        return LinkRefused(
            "cluster",
            f"worker {hello.node} belongs to cluster {hello.cluster!r}, the leader to {settings.cluster!r}",
        )
    if epoch is None:
        return LinkRefused("not-leader", "this process does not lead now; the election key in etcd says who does")
    if hello.cluster_uid and hello.cluster_uid != epoch.cluster_uid:
        return LinkRefused(
            "uid",
            f"worker {hello.node} knows cluster uid {hello.cluster_uid.hex()}, "
            f"the leader {epoch.cluster_uid.hex()}: they use different etcd data",
        )
    if links >= settings.max_workers:
        return LinkRefused("busy", f"the leader has {links} links, the limit is max_workers = {settings.max_workers}")
    return None


def ignored(hello: WorkerHello, settings: LeaderSettings) -> LinkRefused:
    """The refusal of a hello whose registration found no place."""
    return LinkRefused(
        "busy",
        f"worker {hello.node}: its registration is ignored, as {settings.max_workers} others came before it; "
        f"the limit is max_workers = {settings.max_workers}",
    )


def outdated(hello: WorkerHello, incarnation: int) -> LinkRefused:
    """The refusal of a hello whose registration has been replaced."""
    return LinkRefused(
        "incarnation",
        f"worker {hello.node} says incarnation {hello.incarnation}, etcd has {incarnation}: "
        "claims of a replaced registration do not count",
    )


def other_life(hello: WorkerHello) -> LinkRefused:
    """The refusal of a hello whose number another process has: etcd went back, and gave it a second time."""
    return LinkRefused(
        "incarnation",
        f"worker {hello.node}: incarnation {hello.incarnation} is now that of another process, "
        f"not of boot {hello.boot_id.hex()}",
    )


def unregistered(hello: WorkerHello, waited: float) -> LinkRefused:
    """The refusal of a hello whose registration did not show in time."""
    return LinkRefused(
        "unregistered",
        f"worker {hello.node}: etcd showed no registration of incarnation {hello.incarnation} within {waited:g} s",
    )
