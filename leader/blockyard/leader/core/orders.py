"""The book of orders: what was asked of which worker, and what has become of it.

Owns job numbers, deadlines and outcomes. Must never know why an order is given.

    waiting --a link has room--> sent --last report--> over (done, refused, expired)
       ^                          |
       +------- link lost --------+      any of them: expired, once its deadline is past or the term is

A number is never used twice in a process, hence not in an epoch. An order that was sent on a link that is lost is sent
again on the next one: the worker knows the job, and does it once. Only a link of this term is given orders; what is
open when the term ends is expired. Of what is over the latest are kept, for people.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import MAX_MS, PROTOCOL_PEERS, Order, OrderKind, OrderReport
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core.instructions import Instruction, SendTo
from blockyard.leader.core.membership import Member, Membership

MAX_OPEN = 4096
"""Jobs that are not over; further ones are not taken on."""

MAX_SENT = 8
"""Jobs at one worker at a time; its further ones wait in the order they came."""

MAX_OVER = 1024
"""Jobs that are over and kept; the oldest go first."""

LATE_S = 2.0
"""How long after its deadline a worker's own word on a job is waited for."""


@dataclass(slots=True)
class Job:
    """One order to one worker. `cause` names what it is for; `state` is waiting, sent, done, refused or expired."""

    number: int
    node: str
    kind: OrderKind
    deadline: float
    cause: str
    keys: list[Key] = field(default_factory=list)
    source: str = ""
    fingerprint: bytes = b""
    group: int = 0
    state: str = "waiting"
    count: int = 0
    left: int = 0
    reason: str = ""
    link: int | None = None
    heard: bool = False
    """The worker has reported on it."""

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in ("waiting", "sent")


class OrderBook:
    """All orders of this process."""

    def __init__(self, members: Membership, counters: Counters) -> None:
        self._members = members
        self._counters = counters
        self._next = 1
        self._open: dict[int, Job] = {}
        self._over: deque[Job] = deque(maxlen=MAX_OVER)

    def __iter__(self) -> Iterator[Job]:
        """Every job that is known, the oldest first among those that are over, then those that are open."""
        yield from self._over
        yield from self._open.values()

    @property
    def open(self) -> int:
        """Jobs that are not over."""
        return len(self._open)

    @property
    def room(self) -> int:
        """How many more jobs can be taken on."""
        return MAX_OPEN - len(self._open)

    def open_of(self, cause: str) -> list[Job]:
        """The jobs of one cause that are not over."""
        return [job for job in self._open.values() if job.cause == cause]

    def give(self, job: Job) -> Job:
        """Take this job on, under a number of its own. The caller has looked whether there is room."""
        job.number = self._next
        self._next += 1
        self._open[job.number] = job
        return job

    def due(self, now: float) -> list[Instruction]:
        """What is to be sent now."""
        at: dict[str, int] = {}
        for job in self._open.values():
            at[job.node] = at.get(job.node, 0) + (job.state == "sent")
        done: list[Instruction] = []
        for job in self._open.values():
            member = self._members.by_node.get(job.node)
            if job.state == "waiting" and member is not None and takes_orders(member) and at[job.node] < MAX_SENT:
                assert member.link is not None
                at[job.node] += 1
                job.state, job.link = "sent", member.link
                done.append(SendTo(member.link, _message(job, now)))
        return done

    def reported(self, link: int, report: OrderReport) -> bool:
        """A worker's word; True if it is of an order that this link was sent and that is open."""
        job = self._open.get(report.job)
        if job is None or job.link != link:
            return False
        job.count, job.left, job.reason, job.heard = report.count, report.left, report.reason, True
        if report.outcome != "progress":
            self._end(job, report.outcome, report.reason)
        return True

    def link_lost(self, link: int) -> None:
        """What was sent on this link is to be sent again."""
        for job in self._open.values():
            if job.link == link:
                job.state, job.link = "waiting", None

    def expire(self, now: float) -> None:
        """End what is past its deadline; a worker that has the order gets a moment more to say so itself."""
        for job in list(self._open.values()):
            if now >= job.deadline + (LATE_S if job.state == "sent" else 0.0):
                self._end(job, "expired", "no-link" if job.state == "waiting" else "no-report")

    def end_of_term(self) -> None:
        """No order of this process counts any more."""
        for job in list(self._open.values()):
            self._end(job, "expired", "leadership-lost")

    def withdraw(self, cause: str) -> None:
        """What is open of this cause is not wanted any more: it is not sent, and nothing is heard of it."""
        for job in self.open_of(cause):
            self._end(job, "expired", "withdrawn")

    def _end(self, job: Job, state: str, reason: str) -> None:
        del self._open[job.number]
        job.state, job.reason, job.link = state, reason, None
        self._over.append(job)
        self._counters.add("blockyard_leader_orders_total", kind=job.kind, outcome=state)


def takes_orders(member: Member) -> bool:
    """Whether this worker can be given orders now."""
    return member.link is not None and member.protocol >= PROTOCOL_PEERS


def _message(job: Job, now: float) -> Order:
    left = max(0, min(MAX_MS, int(1000 * (job.deadline - now))))
    return Order(job.number, job.kind, left, job.keys, job.source, job.fingerprint, 0, job.group)
