"""Orders of the leader: what each comes to, told once per job and never done twice.

Owns the book of jobs of the term that the link is of. Whatever it does not know it refuses, as a worker may. A copy
that is ordered takes free slots alone: nothing that an engine has stored here makes way for it.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from blockyard.common.fencing import Epoch
from blockyard.common.identity import Key
from blockyard.common.messages.cluster import Order, OrderReport, Outcome
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import ChunkState
from blockyard.worker.core.disk.tier import DiskTier
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction, Publish
from blockyard.worker.core.peers.tier import PeerTier
from blockyard.worker.core.reservations import Reservations
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.worlds import WorldBook

MAX_JOBS = 1024
"""Jobs that are remembered, those under way among them."""

MAX_UNDER_WAY = 64


@dataclass(slots=True, eq=False)
class Job:
    """An order that takes time. `open` are the keys still to be begun, `reads` what is under way."""

    order: Order
    deadline: float
    open: list[Key]
    reads: dict[int, Key] = field(default_factory=dict)
    count: int = 0


class Orders:
    """`ordered` takes an order; its report goes to the leader when it has come to an end."""

    def __init__(
        self,
        counters: Counters,
        holdings: Holdings,
        worlds: WorldBook,
        disk: DiskTier,
        peers: PeerTier,
        reservations: Reservations,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._counters = counters
        self._holdings = holdings
        self._worlds = worlds
        self._disk = disk
        self._peers = peers
        self._reservations = reservations
        self._emit = emit
        self._epoch: Epoch | None = None
        self._reports: OrderedDict[int, OrderReport] = OrderedDict()
        """Of jobs that are over."""
        self.under_way: dict[int, Job] = {}

    def link_up(self, epoch: Epoch) -> None:
        """Job numbers are of one term; those of another mean nothing any more."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._reports.clear()
            self.under_way.clear()
            self._reservations.closed = False  # another leader knows of no drain

    def ordered(self, order: Order, now: float) -> None:
        """Do it, refuse it, or say again what became of it."""
        report = self._reports.get(order.job)
        if report is not None:
            self._emit(Publish([report]))
        elif order.job not in self.under_way:
            self._begin(order, now)

    def read_ended(self, number: int, well: bool, now: float) -> None:
        """Something that was begun is over, for this job or for others too."""
        for job in [one for one in self.under_way.values() if number in one.reads]:
            del job.reads[number]
            job.count += well
            self._go_on(job, now)

    def tick(self, now: float) -> None:
        """Go on with what had no room before, and give up what is late."""
        for job in list(self.under_way.values()):
            if job.deadline <= now:
                self._end(job.order, "expired", job.count, len(job.open) + len(job.reads), "deadline")
            elif job.open:
                self._go_on(job, now)

    def next_deadline(self) -> float | None:
        return min((job.deadline for job in self.under_way.values()), default=None)

    def _begin(self, order: Order, now: float) -> None:
        if order.kind == "purge":
            self._purge(order)
        elif order.kind in ("drain", "undrain"):
            self._reservations.closed = order.kind == "drain"
            self._end(order, "done", 0, self._holdings.slots[ChunkState.READY] if order.kind == "drain" else 0, "")
        elif order.kind == "copy" and self._reservations.closed:
            self._end(order, "refused", 0, len(order.keys), "draining")
        elif order.kind not in ("copy", "promote") or (order.kind == "copy" and not self._peers.settings.enabled):
            self._end(order, "refused", 0, len(order.keys), "unsupported")
        elif len(self.under_way) >= MAX_UNDER_WAY:
            self._end(order, "refused", 0, len(order.keys), "busy")
        elif order.kind == "copy" and self._class_of(order) is None:
            self._end(order, "refused", 0, len(order.keys), "unknown-world")
        else:
            job = Job(order, now + order.deadline_ms / 1000, list(dict.fromkeys(order.keys)))
            self.under_way[order.job] = job
            self._go_on(job, now)

    def _go_on(self, job: Job, now: float) -> None:
        """Begin what can be begun; the job is over when nothing is left to wait for."""
        start = self._copy if job.order.kind == "copy" else self._promote
        waiting: list[Key] = []
        for at, key in enumerate(job.open):
            chunk = self._holdings.index.get(key)
            if chunk is not None and chunk.state is ChunkState.READY:
                job.count += 1
                continue
            read = start(job, key, now) if chunk is None else chunk.read
            if read is None:
                waiting += job.open[at:]
                break
            if read:
                job.reads[read] = key
        job.open = waiting
        self._peers.send(now)
        if not job.open and not job.reads:
            missing = len(set(job.order.keys)) - job.count
            self._end(job.order, "done", job.count, missing, "incomplete" if missing else "")

    def _promote(self, job: Job, key: Key, now: float) -> int | None:
        """The read that was begun; 0 if there is no copy, None if it has to wait."""
        copy = next((one.on_disk[key] for one in self._worlds.classes() if key in one.on_disk), None)
        return 0 if copy is None else self._disk.promoting.start(copy, now) or None

    def _copy(self, job: Job, key: Key, now: float) -> int | None:
        size_class = self._class_of(job.order)
        if size_class is None or job.order.node not in self._peers.roster.by_node:
            return 0
        if not size_class.roomy and not self._holdings.pool.free_slabs:
            return 0
        return self._peers.fetch(key, b"", size_class, [job.order.node], now) or None

    def _class_of(self, order: Order) -> SizeClass | None:
        world = self._worlds.get(order.fingerprint)
        return None if world is None else world.classes.get(order.group)

    def _purge(self, order: Order) -> None:
        if not self._disk.bury(order.fingerprint, order.keys):
            self._end(order, "refused", 0, len(order.keys), "busy")
            return
        if order.fingerprint:
            self._reservations.forget(order.fingerprint)
        self._reservations.drop(order.keys)
        self._end(order, "done", len(order.keys), 0, "")

    def _end(self, order: Order, outcome: Outcome, count: int, left: int, reason: str) -> None:
        self.under_way.pop(order.job, None)
        report = OrderReport(order.job, outcome, count, left, reason)
        self._reports[order.job] = report
        while len(self._reports) + len(self.under_way) > MAX_JOBS:
            self._reports.popitem(last=False)
        self._counters.add("blockyard_worker_orders_total", kind=order.kind, outcome=outcome)
        self._emit(Publish([report]))
