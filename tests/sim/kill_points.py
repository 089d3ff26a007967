"""Death at the n-th message between engine and worker, before it is taken in or right after. Owns the counting of these
messages, the small world in which each point is tried, and the note of where deaths landed in any other run.

Each message is a point: of the first requests of one engine, stores and loads, every one is tried with every process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from sim.broken import VARIANTS
from sim.process import Process
from sim.rank import Link
from sim.worker_node import EngineSide
from sim.world import World

Deliver = Callable[[Any, Any], None]

_MOST_SECONDS = 12.0
_AFTERLIFE = 3.0
"""Virtual seconds of further requests after a death, so that what it left would be met."""


@dataclass(frozen=True, slots=True)
class Point:
    """`message` counts from 1, `victim` is `scheduler`, `worker` or a rank such as `rank0`."""

    message: int
    victim: str
    after: bool

    def __str__(self) -> str:
        return f"{self.victim} dies {'after' if self.after else 'before'} message {self.message}"


class SmallWorld(World):
    """A worker, a leader and one engine; no faults but one death."""

    def __init__(self, seed: int, broken: Any, point: Point | None, requests: int) -> None:
        super().__init__(seed, broken, lambda fault: False)
        self.messages: list[str] = []
        """Kinds of all messages so far, in order."""
        self.died_at = ""
        self._point = point
        self._wanted = requests

    def run(self) -> None:
        self.start_worker("node0")
        self.start_leader("leader0")
        self.start_engine(0)
        while self.numbers["requests ended"] < self._wanted and not self.died_at and self.clock.now < _MOST_SECONDS:
            self.clock.run_until(self.clock.now + 0.05)
        if self.died_at:
            self.clock.run_until(self.clock.now + 0.3)
            self.start_worker("node0")
            for engine in self.engines:
                if not engine.alive:
                    engine.kill("both")
            self.clock.run_until(self.clock.now + _AFTERLIFE)
        self.quiet = True
        self._settle()

    def delivered(self, message: object, after: bool) -> None:
        """A message is about to be taken in, or has been."""
        if self.quiet or self.died_at:
            return
        if not after:
            self.messages.append(type(message).__name__)
        point = self._point
        if point is not None and (len(self.messages), after) == (point.message, point.after):
            self.died_at = self.messages[-1]
            self._victim(point.victim).kill()

    def _victim(self, name: str) -> Process:
        if name == "worker":
            return self.workers["node0"].process
        engine = self.engines[0]
        return engine.scheduler.process if name == "scheduler" else engine.ranks[int(name[4:])].process


def run_point(seed: int, point: Point | None, requests: int, variant: str = "nothing") -> SmallWorld:
    """One run to its end; raises Violation."""
    with VARIANTS[variant]() as broken:
        world = SmallWorld(seed, broken, point, requests)
        with _each_delivery(world.delivered):
            world.run()
    return world


@contextmanager
def noted_deaths(deaths: Counter[tuple[str, str]]) -> Iterator[None]:
    """Count each death of an engine's or a worker's process by its role and the last message that it took or sent."""
    kill = Process.kill
    last: dict[Process, str] = {}

    def note(process: Process, message: object) -> None:
        last[process] = type(message).__name__

    def noted_kill(self: Process) -> None:
        if self.alive and self in last:
            deaths[_role(self), last[self]] += 1
        kill(self)

    with _each_message(note), patch.object(Process, "kill", noted_kill):
        yield


def _role(process: Process) -> str:
    return "scheduler" if ".scheduler" in process.name else "rank" if ".rank" in process.name else "worker"


@contextmanager
def _each_delivery(tell: Callable[[object, bool], None]) -> Iterator[None]:
    """`tell` before and after each message of an engine's session is taken in, by either side."""
    with ExitStack() as stack:
        for side in (Link, EngineSide):
            stack.enter_context(patch.object(side, "received", _watched(side.received, tell)))
        yield


def _watched(received: Deliver, tell: Callable[[object, bool], None]) -> Deliver:
    def watched(self: Any, message: object) -> None:
        tell(message, False)
        if self.open:
            received(self, message)
            tell(message, True)

    return watched


@contextmanager
def _each_message(note: Callable[[Process, object], None]) -> Iterator[None]:
    """`note` a message with each process that takes it in or sends it."""

    def around(original: Deliver) -> Deliver:
        def noted(self: Any, message: object) -> None:
            note(self._transport.process, message)
            original(self, message)

        return noted

    with ExitStack() as stack:
        for side in (Link, EngineSide):
            stack.enter_context(patch.object(side, "received", around(side.received)))
            stack.enter_context(patch.object(side, "send", around(side.send)))
        yield
