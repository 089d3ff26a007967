"""A worker's directories in the simulator: production's Device and segment store on model disks that outlive workers.

Owns the bridges: pages of tags as the bytes that a store moves, and operations that end at one moment of virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockyard.common.errors import BlockyardError
from blockyard.common.slot_table import PAGE
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.settings import DirectorySettings, DiskSettings
from blockyard.worker.disk.device import Device
from blockyard.worker.disk.opening import Answer
from blockyard.worker.disk.segments import SegmentStore, Started
from blockyard.worker.disk.settings import StoreSettings
from blockyard.worker.disk.threads import IoClass
from sim.disk import ModelDisk, read_tags, tag_area, tag_checksum
from sim.memory import Memory
from support.disk_faults import Fault

if TYPE_CHECKING:
    from sim.worker_node import WorkerNode

_TICK = 0.1
_SYNC_TICKS = 20


@dataclass(eq=False)
class SimDisk:
    """One device of a machine. It stays when workers come and go."""

    model: ModelDisk
    settings: StoreSettings
    draw: random.Random
    clock: Callable[[], float]
    faulty: int = 0
    """Faults at work."""

    def fail(self, fault: Fault, seconds: float, after: Callable[[float, Callable[[], None]], None]) -> None:
        """Operations go wrong for a while."""
        self.faulty += 1
        self.model.inject(fault)
        after(seconds, self._recover)

    def heal(self) -> None:
        """Everything works."""
        self.faulty = 0
        self.model.heal()

    def _recover(self) -> None:
        self.faulty -= 1
        if self.faulty <= 0:
            self.heal()

    def open(self) -> tuple[SegmentStore, Started]:
        return SegmentStore.open(
            self.model.directory,
            self.settings,
            checksum=tag_checksum,
            new_uuid=lambda: self.draw.randbytes(16),
            now_ns=lambda: int(self.clock() * 1e9),
        )


def core_settings(disks: list[SimDisk], draw: random.Random) -> DiskSettings:
    """Limits, some so tight that they are met."""
    each = [
        DirectorySettings(f"disk{number}", disk.settings.segments, disk.settings.segment_bytes)
        for number, disk in enumerate(disks)
    ]
    return DiskSettings(
        tuple(each),
        admission=draw.choice(["always", "always", "second-touch"]),
        write_rate=draw.choice([2e5, 1e9]),
        max_writing=draw.choice([4, 64]) * PAGE,
        max_reads=draw.choice([2, 64]),
        max_writes=draw.choice([1, 16]),
        promoting_share=draw.choice([0.2, 1.0]),
        patience=1.0,
        max_waiting=draw.choice([1, 64]),
        full_pause=1.0,
    )


class DiskSide:
    """Runs in the worker's process."""

    def __init__(self, worker: WorkerNode, disks: list[SimDisk]) -> None:
        self._process = worker.process
        self._memory = _SlotBytes(worker.memory)
        self._disks = disks
        self._slots: dict[int, int] = {}
        self._worker = worker
        self._devices = [
            Device(number, _Runner(worker, disk, self._memory), self._memory, disk.open, self._ended, self._trouble)
            for number, disk in enumerate(disks)
        ]
        for disk in disks:
            worker.process.on_death(disk.model.kill_process)
        if disks:
            worker.process.spawn(self._tick())

    def execute(self, one: wire.DiskInstruction) -> None:
        """A slot is touched from here on until the operation's event."""
        if isinstance(one, wire.ReadExtent | wire.WriteExtent):
            self._slots[one.op] = one.slot
            self._worker.memory.begin_copy(one.slot)
        self._devices[one.directory].execute(one)

    def _ended(self, event: wire.DiskEvent) -> None:
        slot = None if isinstance(event, wire.DiskFound) else self._slots.pop(event.op, None)
        if slot is not None:
            self._worker.memory.end_copy(slot)
        name = type(event).__name__
        reason = f" {event.reason}" if isinstance(event, wire.DiskFailed) else ""
        self._worker.world.numbers[f"{name}{reason}"] += 1
        self._worker.feed(event)

    def _trouble(self, words: str) -> None:
        self._worker.world.numbers["disk troubles"] += bool(words)

    async def _tick(self) -> None:
        ticks = 0
        while True:
            ticks += 1
            for device in self._devices:
                device.tick(self._process.clock.now)
                if ticks % _SYNC_TICKS == 0:
                    device.sync()
            await self._process.sleep(_TICK)


class _SlotBytes:
    """The pool as bytes: taken when an operation begins, put back when it has ended."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.taken: list[tuple[int, memoryview]] = []

    def areas(self, offset: int, areas: int, stride: int) -> list[memoryview]:
        first, count = offset // PAGE, areas * stride // PAGE
        held = tag_area(self._memory.pages[first : first + count])
        self.taken.append((first, held))
        return [held[i * stride : (i + 1) * stride] for i in range(areas)]

    def shown_checksums(self, slot: int, generation: int) -> tuple[int, ...] | None:
        record = self._memory.record(slot)
        return record.checksums if record.generation == generation and record.checksums else None

    def put_back(self, taken: list[tuple[int, memoryview]]) -> None:
        for first, held in taken:
            tags = read_tags(held)
            self._memory.pages[first : first + len(tags)] = tags


class _Runner:
    """A device's operations, one moment each, and their answers when the process gets to them."""

    def __init__(self, worker: WorkerNode, disk: SimDisk, memory: _SlotBytes) -> None:
        self._process = worker.process
        self._disk = disk
        self._memory = memory

    def submit(self, kind: IoClass, size: int, work: Callable[[], object], answer: Answer) -> bool:
        taken, self._memory.taken = self._memory.taken, []

        def act() -> object:
            try:
                return work()
            except BlockyardError as error:
                return error
            finally:
                if kind is IoClass.DEMAND:
                    self._memory.put_back(taken)

        return self._disk.model.submit(size, act, lambda result: self._process.call(lambda: answer(result)))
