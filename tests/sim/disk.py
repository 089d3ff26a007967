"""A disk in virtual time: files, what goes wrong with them, and how long operations take.

Owns the queue of operations and their ends. What an operation does is production's code on the model's files; here it
happens at one moment, when its time has passed. Bytes are exact, and pages of tags cost no more than the tags
(files.py).

    files     what the pages hold, whatever happens            (files.py)
    power     takes back what was not synced when power fails  (support/power_cut.py)
    faults    spoils single operations                         (support/disk_faults.py)
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import xxhash

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.io import DiskDirectory
from sim.clock import Clock
from sim.files import ModelDirectory
from sim.memory import Tag
from support.disk_faults import Fault, FaultyDirectory, Kind, ProcessKilled
from support.power_cut import PowerCutDirectory

_MOST_STEPS = 4
"""System calls of the longest operation, roughly: a kill comes before one of them."""

Answer = Callable[[object], None]
"""Called once per operation that ends while its process lives, with what it returned or the exception it raised."""


@dataclass(eq=False)
class Operation:
    """`act` does it, on whatever the directory's files are then; `size` is how many bytes it moves."""

    size: int
    act: Callable[[], object]
    answer: Answer


class ModelDisk:
    """`depth` operations at a time are under way, `waiting` more may queue; one beyond that is refused."""

    def __init__(
        self,
        clock: Clock,
        draw: random.Random,
        capacity: int,
        *,
        depth: int = 4,
        waiting: int = 64,
        direct: bool = True,
    ) -> None:
        self._clock = clock
        self._draw = draw
        self._depth = depth
        self._most_waiting = waiting
        self.latency = 0.0001
        self.bytes_per_second = 1e9
        self.files = ModelDirectory(capacity, direct=direct)
        self._hung = False
        self._begin_life()

    @property
    def directory(self) -> DiskDirectory:
        """What the process that lives now works with."""
        return self.faults

    @property
    def under_way(self) -> int:
        return len(self._running)

    def submit(self, size: int, act: Callable[[], object], answer: Answer) -> bool:
        """Begin an operation, or let it wait; False when there is no place for it."""
        if len(self._waiting) >= self._most_waiting:
            return False
        self._waiting.append(Operation(size, act, answer))
        self._begin_more()
        return True

    def inject(self, fault: Fault) -> None:
        """Spoil operations to come."""
        self.faults.inject(fault)

    def hang(self) -> None:
        """No operation ends until `heal`."""
        self._hung = True

    def heal(self) -> None:
        """Everything works again, and what hangs goes on."""
        self.faults.heal()
        self.latency, self.bytes_per_second = 0.0001, 1e9
        self._hung = False
        for operation in self._late:
            self._clock.after(0.0, self._ending(operation))
        self._late.clear()

    def kill_process(self) -> None:
        """SIGKILL: of what is under way, each operation is done, half done or not done; nobody is answered.

        What was written stays, synced or not.
        """
        for operation in [*self._running]:
            self._leave_half_done(operation)
        self.files.end_process()
        self._begin_life(self.power)

    def cut_power(self) -> None:
        """As a kill, and each change that was not synced is lost or not, as drawn."""
        self.kill_process()
        self.power.cut(lambda: self._draw.random() < 0.5)
        self._begin_life()

    def _begin_life(self, power: PowerCutDirectory | None = None) -> None:
        self.power = power or PowerCutDirectory(self.files)
        self.faults = FaultyDirectory(self.power)
        self._running: dict[Operation, None] = {}
        self._waiting: deque[Operation] = deque()
        self._late: list[Operation] = []

    def _begin_more(self) -> None:
        while self._waiting and len(self._running) < self._depth:
            operation = self._waiting.popleft()
            self._running[operation] = None
            seconds = self.latency * self._draw.uniform(0.5, 2.0) + operation.size / self.bytes_per_second
            self._clock.after(seconds, self._ending(operation))

    def _ending(self, operation: Operation) -> Callable[[], None]:
        return lambda: self._end(operation)

    def _end(self, operation: Operation) -> None:
        if operation not in self._running:
            return  # of a process that is dead
        if self._hung:
            self._late.append(operation)
            return
        del self._running[operation]
        result: object
        try:
            result = operation.act()
        except Exception as error:
            result = error
        operation.answer(result)
        self._begin_more()

    def _leave_half_done(self, operation: Operation) -> None:
        chance = self._draw.random()
        if chance < 1 / 3:
            return
        self.faults.faults.clear()
        if chance < 2 / 3:
            step, where = self._draw.randint(1, _MOST_STEPS), self._draw.random()
            self.faults.inject(Fault(Kind.KILLED, at=step, where=where))
        with contextlib.suppress(Exception, ProcessKilled):
            operation.act()


def write_tags(tags: Sequence[Tag], area: memoryview) -> None:
    """Spread tags over an area's pages, each with its length before it: bytes for the production store."""
    for at, tag in enumerate(tags):
        area[at * PAGE : (at + 1) * PAGE] = (bytes([len(tag)]) + tag).ljust(PAGE, b"\0")


def read_tags(area: memoryview) -> list[Tag]:
    """The tags of an area's pages; of a page that holds no tag, whatever stands there."""
    return [bytes(area[at + 1 : at + 1 + area[at]]) for at in range(0, len(area), PAGE)]


def tag_area(tags: Sequence[Tag]) -> memoryview:
    """A new area that holds these tags."""
    area = memoryview(bytearray(len(tags) * PAGE))
    write_tags(tags, area)
    return area


def tag_checksum(area: memoryview) -> int:
    """What the model memory computes for the same tags. Bytes outside of any tag count too, so that no flip is lost."""
    tags = read_tags(area)
    if any(area[at * PAGE + 1 + len(tag) : (at + 1) * PAGE].tobytes().strip(b"\0") for at, tag in enumerate(tags)):
        return ~xxhash.xxh3_64_intdigest(area) & (1 << 64) - 1
    return xxhash.xxh3_64_intdigest(b"".join(tags))
