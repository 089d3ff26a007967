"""A simulated engine: a scheduler process and its ranks. Owns what holds them together: ids, shapes, jobs on their way
to all ranks and results on their way back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState
from blockyard.engine.jobs import BlockRange, CopyJob, CopyKind, CopyResult
from sim.load import Conversations, Shape
from sim.process import Process
from sim.rank import Rank
from sim.scheduler import Scheduler
from sim.tasks import Future

if TYPE_CHECKING:
    from sim.world import World

OK = CopyState.OK


class Engine:
    """One start of one engine; a restart is another Engine with another id."""

    def __init__(
        self,
        world: World,
        name: str,
        machine: str,
        shape: Shape,
        talks: Conversations,
        verifies: bool,
        protocol: tuple[int, int] = (attach.PROTOCOL_MIN, attach.PROTOCOL_MAX),
    ) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.shape = shape
        self.verifies = verifies
        self.protocol = protocol
        self.draw = world.streams.of(f"engine/{name}")
        self._results: dict[int, tuple[Future[list[CopyState]], dict[int, list[CopyState]]]] = {}
        self.ranks = [Rank(self, rank, world.process(f"{name}.rank{rank}")) for rank in range(shape.ranks)]
        self.scheduler = Scheduler(self, world.process(f"{name}.scheduler"), talks)

    @property
    def processes(self) -> list[Process]:
        return [self.scheduler.process, *(rank.process for rank in self.ranks)]

    @property
    def alive(self) -> bool:
        return all(process.alive for process in self.processes)

    @property
    def attached(self) -> bool:
        return self.scheduler.attached and all(rank.attached for rank in self.ranks)

    def hello(self, role: str, rank: int) -> attach.Hello:
        low, high = self.protocol
        sizes = self.shape.area_bytes if role == "rank" else tuple(0 for _ in self.shape.area_bytes)
        return attach.Hello(
            protocol_min=low,
            protocol_max=high,
            version="sim",
            role="rank" if role == "rank" else "scheduler",
            engine=self.name,
            model=self.shape.name,
            rank=rank,
            local_ranks=self.shape.ranks,
            fingerprint=self.shape.world,
            groups=[attach.GroupShape(group, 256, size) for group, size in enumerate(sizes)],
            gpu_cache_bytes=0,
        )

    def copy(
        self, number: int, kind: CopyKind, grant: int, keys: list[bytes], groups: list[int]
    ) -> Future[list[CopyState]]:
        """Give a job to every rank; the future gets the worst state of each key."""
        future: Future[list[CopyState]] = Future()
        self._results[number] = (future, {})
        job = CopyJob(number, kind, keys, [BlockRange([], 0, group) for group in groups], grant)
        for rank in self.ranks:
            self._soon(rank.process, _submit(rank, job))
        return future

    def cancel(self, number: int) -> None:
        """The request is aborted: ranks drop what they have not begun."""
        for rank in self.ranks:
            self._soon(rank.process, _cancel(rank, number))

    def result(self, rank: Rank, result: CopyResult) -> None:
        """One rank's result, on its way to the scheduler."""
        self._soon(self.scheduler.process, lambda: self._gather(rank.rank, result))

    def kill(self, first: str) -> None:
        """The engine dies: one process first, the others some time later, or all at once."""
        order = list(self.processes)
        if first == "rank":
            order = order[1:] + order[:1]
        delay = 0.0
        for process in order:
            self.world.clock.after(delay, process.kill)
            if first != "both":
                delay += self.draw.expovariate(2)

    def _gather(self, rank: int, result: CopyResult) -> None:
        entry = self._results.get(result.job)
        if entry is None:
            return
        future, states = entry
        states[rank] = result.states
        if len(states) == len(self.ranks):
            del self._results[result.job]
            future.resolve([next((s for s in row if s is not OK), OK) for row in zip(*states.values(), strict=True)])

    def _soon(self, process: Process, act: Callable[[], None]) -> None:
        process.after(self.draw.expovariate(3000), act)


def _submit(rank: Rank, job: CopyJob) -> Callable[[], None]:
    return lambda: rank.submit(job)


def _cancel(rank: Rank, number: int) -> Callable[[], None]:
    return lambda: rank.cancel(number)
