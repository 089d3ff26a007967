"""Whether whoever connects is let in. Owns the reasons to refuse; opens and closes nothing."""

from __future__ import annotations

from blockyard.common.errors import BlockyardError
from blockyard.common.messages import peer
from blockyard.worker.peers.standing import Self


class Refused(BlockyardError):
    """This one is not served; `code` is a bounded word, `detail` one line for people."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def admit(me: Self, hello: peer.PeerHello, certified: str | None) -> int:
    """The protocol version to speak with who says this; Refused if it may not. `certified` is the name in its
    certificate, None without TLS.
    """
    if certified is not None and certified != hello.node:
        raise Refused("identity", f"worker {hello.node} came with the certificate of {certified!r}")
    if hello.protocol_min > peer.PROTOCOL_MAX or hello.protocol_max < peer.PROTOCOL_MIN:
        raise Refused("version", other_versions(hello.version, hello.protocol_min, hello.protocol_max))
    if hello.cluster != me.cluster:
        raise Refused("cluster", f"this worker belongs to {me.cluster!r}, not to {hello.cluster!r}")
    standing = me.standing()
    if standing.cluster_uid and hello.cluster_uid and standing.cluster_uid != hello.cluster_uid:
        raise Refused("uid", f"the cluster uid is {standing.cluster_uid.hex()}, not {hello.cluster_uid.hex()}")
    if (hello.to_node, hello.to_incarnation) != (me.node, standing.incarnation):
        raise Refused(
            "life",
            f"this is registration {standing.incarnation} of {me.node!r}, "
            f"not {hello.to_incarnation} of {hello.to_node!r}",
        )
    return min(hello.protocol_max, peer.PROTOCOL_MAX)


def other_versions(version: str, low: int, high: int) -> str:
    """Why there is no version in common."""
    return (
        f"worker {version} speaks protocol {low} to {high}, "
        f"this worker speaks {peer.PROTOCOL_MIN} to {peer.PROTOCOL_MAX}"
    )
