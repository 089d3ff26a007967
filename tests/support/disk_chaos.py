"""Random lives of a worker core with disks: the same engines, and devices that end, fail, forget and hang.

Owns what the core cannot see: which slots a device really touches, and whose bytes really lie where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockyard.common.messages import attach
from blockyard.common.slot_table import PAGE
from blockyard.worker.core import events
from blockyard.worker.core.disk import wire
from support.disk_device import DiskNode
from support.worker_chaos import LIMITS, NAMES, OK, Chaos
from support.worker_core import Node, keys, run


class DiskChaos(Chaos):
    """Two small directories, one of which may hang for long."""

    def new_node(self) -> Node:
        self.touched: dict[int, dict[int, tuple[int, bytes]]] = {}
        """By operation: what a device really reads or writes of the pool."""
        disk = {
            "max_writing": self.random.choice((PAGE, 6 * PAGE)),
            "max_reads": 3,
            "max_writes": 2,
            "max_waiting": 3,
            "forward_share": 0.5,
            "promoting_share": self.random.choice((0.2, 1.0)),
            "admission": self.random.choice(("always", "second-touch")),
        }
        self.disks = DiskNode(16, directories=2, segments=3, per_segment=4, per_slab=4, disk=disk, **LIMITS)
        self.bad = False
        """The devices fail again and again."""
        return self.disks

    @property
    def actions(self) -> tuple[list[Callable[[Any], None]], list[float]]:
        actions, weights = super().actions
        return [*actions, Chaos.checksum, DiskChaos.store, DiskChaos.moment, DiskChaos.device], [
            *weights,
            30,
            12,
            20,
            60,
        ]

    def some_keys(self, name: str) -> list[bytes]:
        first = 100 * (name == "c") + self.random.randrange(0, 24, 3)
        return keys(*range(first, first + self.random.randint(1, 6)))

    def store(self) -> None:
        """A whole store without trouble, as far as there is room."""
        name = self.random.choice(NAMES)
        engine, wanted = self.engines[name], self.some_keys(name)
        self.next += 1
        job = self.next
        self.do(events.Received(engine.scheduler, attach.Fill(job, "r0", [run(wanted)])))
        for session in list(engine.ranks.values()):
            self.next += 1
            ask = attach.Resolve(self.next, job, "store", 0, b"".join(wanted), 0)
            self.asked[session, self.next] = ask
            self.do(events.Received(session, ask))
            copy = self.copying.get((session, "store", job))
            if copy is not None:
                self.end_copy(copy, [OK] * len(copy.pages))
                self.do(events.Received(session, attach.StoreDone(job, bytes(len(wanted)), 1, 1)))

    def moment(self) -> None:
        """A little time passes."""
        self.node.now += 0.01
        self.do(events.Tick())

    def under_copy(self) -> list[dict[int, tuple[int, bytes]]]:
        return [*super().under_copy(), *self.touched.values()]

    def do(self, event: Any) -> None:
        before = set(self.disks.pending)
        self.touched = {op: pages for op, pages in self.touched.items() if op in before}
        super().do(event)
        for op, one in self.disks.pending.items():
            if op not in before and isinstance(one, wire.ReadExtent | wire.WriteExtent):
                self.touched[op] = dict.fromkeys(_areas(one), (one.generation, _key(one)))

    def device(self) -> None:
        """One operation ends, most often well."""
        if not self.disks.pending:
            return
        one = self.random.choice(list(self.disks.pending.values()))
        self.bad = self.bad != (self.random.random() < 0.02)
        good = not self.bad and self.random.random() < 0.9
        if isinstance(one, wire.WriteExtent | wire.MoveExtent | wire.ProbeDirectory) and not good:
            event = self.disks.failure(one.op, self.random.choice(("io", "full", "busy")))
        elif isinstance(one, wire.ReadExtent) and not good:
            self._scribble(one)
            event = self.disks.failure(one.op, self.random.choice(("io", "corrupt", "gone", "busy")))
        else:
            event = self._ends_well(one)
        self.do(event)

    def heal(self) -> None:
        """What is under way ends too, and the devices work."""
        super().heal()
        for _ in range(200):
            while self.disks.pending:
                self.do(self._ends_well(next(iter(self.disks.pending.values()))))
            self.node.now += 10
            self.do(events.Tick())

    def _ends_well(self, one: Any) -> wire.DiskEvent:
        if isinstance(one, wire.WriteExtent):
            assert all(self.memory.get(area) == one.key for area in _areas(one)), "other bytes go to disk"
        elif isinstance(one, wire.ReadExtent | wire.MoveExtent):
            lies = self.disks.devices[one.directory].files.get((one.extent.segment, one.extent.offset))
            assert lies == one.extent.key, "a copy is looked for where it is not"
        if isinstance(one, wire.ReadExtent):
            for area in _areas(one):
                self.memory[area] = one.extent.key
        return self.disks.outcome(one.op)

    def _scribble(self, one: wire.ReadExtent) -> None:
        for area in _areas(one):
            self.memory[area] = b"half read"


def _key(one: wire.ReadExtent | wire.WriteExtent) -> bytes:
    return one.key if isinstance(one, wire.WriteExtent) else one.extent.key


def _areas(one: wire.ReadExtent | wire.WriteExtent) -> list[int]:
    shape = one.shape if isinstance(one, wire.WriteExtent) else one.extent.shape
    return [one.offset + i * shape.stride for i in range(shape.areas)]
