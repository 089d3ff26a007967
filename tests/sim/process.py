"""A simulated process: it runs, is slow, is paused, or is dead. Owns when its code may run.

Whatever reaches a paused or slow process waits in order, as data waits in a kernel's buffers. The death of a process
ends all of its tasks at once, wherever they stand.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from sim.clock import Act, Clock
from sim.tasks import Future, Task


class Process:
    """`lag` is how long each step of a slow process takes at most."""

    def __init__(self, clock: Clock, name: str, draw: random.Random) -> None:
        self.clock = clock
        self.name = name
        self.alive = True
        self.lag = 0.0
        self._draw = draw
        self._paused = 0
        self._late: deque[Act] = deque()
        self._pumping = False
        self._tasks: dict[Task, None] = {}
        self._mourners: list[Callable[[], None]] = []

    @property
    def paused(self) -> bool:
        return self._paused > 0

    def call(self, act: Act) -> None:
        """Run a piece of this process's code now, or when it gets to it."""
        if not self.alive:
            return
        if self._paused or self._late or self.lag:
            self._late.append(act)
            self._pump_soon()
        else:
            act()

    def after(self, seconds: float, act: Act) -> None:
        """A timer of this process."""
        self.clock.after(seconds, lambda: self.call(act))

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task:
        """Begin a task of this process."""
        task = Task(self, work)
        self._tasks[task] = None
        task.over.when_done(lambda: self._forget(task))
        self.after(0.0, task.step)
        return task

    def sleep(self, seconds: float) -> Future[None]:
        future: Future[None] = Future()
        self.clock.after(seconds, lambda: future.resolve(None))
        return future

    async def within(self, future: Future[Any], seconds: float) -> bool:
        """Wait for a future; False when it did not come within so many seconds."""
        either: Future[None] = Future()
        future.when_done(lambda: either.resolve(None))
        self.clock.after(seconds, lambda: either.resolve(None))
        await either
        return future.done

    def pause(self, seconds: float) -> None:
        """Stop for a while, as for a garbage collection or SIGSTOP."""
        self._paused += 1
        self.clock.after(seconds, self._resume)

    def slow(self, lag: float, seconds: float) -> None:
        self.lag = lag
        self.clock.after(seconds, self.hurry)

    def wake(self) -> None:
        """End every pause and all slowness now."""
        self._paused = 0
        self.lag = 0.0
        self._pump_soon()

    def hurry(self) -> None:
        self.lag = 0.0

    def on_death(self, act: Callable[[], None]) -> None:
        """Tell somebody else when this process has died (at once if it has)."""
        if self.alive:
            self._mourners.append(act)
        else:
            act()

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more."""
        if not self.alive:
            return
        self.alive = False
        self._late.clear()
        for task in list(self._tasks):
            task.cancel()
        mourners, self._mourners = self._mourners, []
        for act in mourners:
            act()

    def _forget(self, task: Task) -> None:
        self._tasks.pop(task, None)

    def _resume(self) -> None:
        self._paused = max(0, self._paused - 1)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if self._pumping or self._paused:
            return
        self._pumping = True
        self.clock.after(self._draw.uniform(0, self.lag) if self.lag else 0.0, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._paused or not self.alive or not self._late:
            return
        self._late.popleft()()
        if self._late:
            self._pump_soon()
