"""Who is a member: workers by their registration in etcd, the link of each, and links that came before it.

Owns these maps. Must never know what a worker claims beyond that its claims hang on one incarnation of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from blockyard.common.messages.cluster import WorkerHello, WorkerStats
from blockyard.leader.core.events import WorkerInfo
from blockyard.leader.core.rebuild import Claims
from blockyard.leader.core.views import EngineView, WorkerView


@dataclass(slots=True)
class Member:
    """A registered worker. `since` is when its link was opened, or lost, or when it was registered.

    `protocol` is what its link speaks. `unheard`: it has had no link in this term, so what it claimed in an earlier one
    may be out of date.
    """

    node: str
    incarnation: int
    info: WorkerInfo
    claims: Claims
    since: float
    link: int | None = None
    protocol: int = 0
    stats: WorkerStats | None = None
    behind_since: float | None = None
    unheard: bool = False

    def is_life(self, boot_id: bytes) -> bool:
        """Whether it was the process of this boot id that registered, as far as its entry says."""
        return self.info.boot_id in ("", boot_id.hex())

    @property
    def state(self) -> str:
        """live, partial (linked, and owes a part of its claims) or lost (no link: its claims are stale)."""
        if self.link is None:
            return "lost"
        return "live" if self.claims.in_step else "partial"

    def view(self) -> WorkerView:
        """The member as the faces show it."""
        stats = self.stats
        return WorkerView(
            node=self.node,
            incarnation=self.incarnation,
            info=self.info,
            state=self.state,
            since=self.since,
            keys=self.claims.holder.copies,
            applied_seq=self.claims.applied,
            used_bytes=stats.used_bytes if stats else None,
            pool_bytes=stats.pool_bytes if stats else None,
            engines=tuple(EngineView(*engine) for engine in stats.engines) if stats else (),
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """A link whose incarnation is newer than any registration seen so far."""

    hello: WorkerHello
    since: float


class Membership:
    """Members by node and by link."""

    def __init__(self) -> None:
        self.by_node: dict[str, Member] = {}
        self.by_link: dict[int, Member] = {}
        self.waiting: dict[int, Waiting] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_node.values())

    @property
    def links(self) -> int:
        """Links in all, those that wait among them."""
        return len(self.by_link) + len(self.waiting)

    def add(self, member: Member) -> None:
        """A new registration of a node that has none here."""
        self.by_node[member.node] = member

    def remove(self, member: Member) -> None:
        """The registration is gone; its link must have been cut before."""
        del self.by_node[member.node]

    def connect(self, member: Member, link: int, protocol: int, now: float) -> None:
        """Give the member its link."""
        self.by_link[link] = member
        member.link, member.protocol, member.since, member.unheard = link, protocol, now, False

    def cut(self, member: Member, now: float) -> int | None:
        """Take the member's link away and return it."""
        link = member.link
        if link is not None:
            del self.by_link[link]
            member.link, member.since = None, now
            member.claims.suspend()
        return link

    def arrivals(self, node: str, incarnation: int) -> list[int]:
        """Links that wait for this registration or for one that it has overtaken."""
        return [
            link
            for link, waiting in self.waiting.items()
            if waiting.hello.node == node and waiting.hello.incarnation <= incarnation
        ]
