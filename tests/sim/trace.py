"""A run told event by event. Owns the lines; changes nothing of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from blockyard.leader.core import events as leader_events
from blockyard.worker.core import events as worker_events
from sim.faults import Fault
from sim.injection import Injector
from sim.leader_node import LeaderNode
from sim.worker_node import WorkerNode

_WIDTH = 220


@contextmanager
def traced() -> Iterator[list[str]]:
    """Collect a line for each fault, each event of a worker or leader but idle ticks."""
    lines: list[str] = []
    feed, handle, inject = WorkerNode.feed, LeaderNode._handle, Injector.inject

    def at(now: float, who: str, what: object) -> None:
        lines.append(f"{now:9.4f} {who}: {what}"[:_WIDTH])

    def worker_feed(self: WorkerNode, event: worker_events.Event) -> None:
        if not isinstance(event, worker_events.Tick):
            at(self.process.clock.now, self.process.name, event)
        feed(self, event)

    def leader_handle(self: LeaderNode, event: leader_events.Event) -> None:
        if not isinstance(event, leader_events.Tick):
            at(self.process.clock.now, self.process.name, event)
        handle(self, event)

    def inject_fault(self: Injector, fault: Fault) -> bool:
        hit = inject(self, fault)
        at(self._clock.now, "fault", f"{fault}{'' if hit else ': nothing to hit'}")
        return hit

    with (
        patch.object(WorkerNode, "feed", worker_feed),
        patch.object(LeaderNode, "_handle", leader_handle),
        patch.object(Injector, "inject", inject_fault),
    ):
        yield lines
