"""Coroutines in virtual time. Owns what `await` means here: a Future that something later resolves.

There is no asyncio underneath: a task's next step is one more event of the clock, run by the task's process, so a
paused process makes no progress and a killed one never wakes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from sim.process import Process

T = TypeVar("T")


class Future(Generic[T]):
    """A value to come. It is resolved once; later values are ignored."""

    __slots__ = ("_waiting", "done", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self._waiting: list[Callable[[], None]] = []

    def resolve(self, value: T) -> None:
        if self.done:
            return
        self.done, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def when_done(self, wake: Callable[[], None]) -> None:
        if self.done:
            wake()
        else:
            self._waiting.append(wake)

    def __await__(self) -> Generator[Future[Any], None, T]:
        if not self.done:
            yield self
        return self.value  # type: ignore[return-value]


class Task:
    """One coroutine on its way. `over` is resolved when it has returned."""

    def __init__(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        self._process = process
        self._work = work
        self.over: Future[None] = Future()

    def step(self) -> None:
        if self.over.done:
            return
        try:
            awaited: Future[Any] = self._work.send(None)
        except StopIteration:
            self.over.resolve(None)
            return
        awaited.when_done(lambda: self._process.after(0.0, self.step))

    def cancel(self) -> None:
        """End it where it stands; its `finally` blocks run and may not wait."""
        if not self.over.done:
            self._work.close()
            self.over.resolve(None)


class Signal:
    """Wakes one waiting task; a wake-up before the wait is not lost."""

    def __init__(self) -> None:
        self._next: Future[None] = Future()

    def set(self) -> None:
        self._next.resolve(None)

    @property
    def is_set(self) -> bool:
        return self._next.done

    def clear(self) -> None:
        if self._next.done:
            self._next = Future()

    async def wait(self, process: Process, seconds: float) -> bool:
        """True when it was set, False after so many seconds."""
        came = await process.within(self._next, seconds)
        if came:
            self._next = Future()
        return came
