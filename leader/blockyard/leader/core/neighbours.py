"""Which workers know which others as peers. Owns who has been told what; must never know what a peer holds.

A peer is a linked worker that registered an address to be asked at, and that speaks a version with peers. A change is
told at the next Tick, so that many at once are told as one, and to some links a Tick only: in a large cluster each
message names them all.
"""

from blockyard.common.messages.cluster import MAX_ADDRESS, MAX_NODE, MIN_ADDRESS, PROTOCOL_PEERS, Peer, Peers
from blockyard.leader.core.instructions import Instruction, SendTo
from blockyard.leader.core.membership import Member, Membership

TOLD_AT_ONCE = 64
"""Links that are told per Tick; the rest wait, each for its turn."""


def is_peer(member: Member) -> bool:
    """Whether other workers may ask this one for chunks. A registration that no message has room for cannot be told."""
    return (
        member.link is not None
        and member.protocol >= PROTOCOL_PEERS
        and MIN_ADDRESS <= len(member.info.peer) <= MAX_ADDRESS
        and len(member.node) <= MAX_NODE
    )


class Neighbours:
    """`tick` compares who there is with who was told of."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._known: tuple[Peer, ...] = ()
        self._untold: dict[int, None] = {}
        self._told: set[int] = set()

    def linked(self, link: int) -> None:
        """A link was welcomed; it begins without peers."""
        self._untold[link] = None

    def ended(self, link: int) -> None:
        """The link is gone."""
        self._untold.pop(link, None)
        self._told.discard(link)

    def tick(self) -> list[Instruction]:
        """What is to be told now."""
        known = tuple(Peer(one.node, one.incarnation, one.info.peer) for one in self._members if is_peer(one))
        if known != self._known:
            self._known = known
            self._untold |= dict.fromkeys(self._members.by_link)
        done: list[Instruction] = []
        for link in list(self._untold):
            if len(done) == TOLD_AT_ONCE:
                break
            del self._untold[link]
            member = self._members.by_link[link]
            others = [peer for peer in known if peer.node != member.node]
            if member.protocol >= PROTOCOL_PEERS and (others or link in self._told):
                self._told.add(link)
                done.append(SendTo(link, Peers(others)))
        return done
