"""The threads that call blocking file operations for one directory. Owns queues, bounds and the count of what hangs;
must never know what an operation is.

    class      for                              may use
    demand     loads that a request waits for   every thread
    prefetch   loads ahead of a request         all but those reserved for demand
    spill      writes                           the same
    upkeep     drops, reclaims, scans, syncs    the same

A waiting operation of a higher class is begun first. Each class has a queue with a bound; one beyond it is refused at
once. An operation that runs longer than `hung_after` counts as hung: another thread takes its place, until there are
`most_hung` of them. From then on nothing is taken but what free threads can do, and with no thread left nothing at all,
until one of them comes back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class IoClass(IntEnum):
    """In the order in which they are begun."""

    DEMAND = 0
    PREFETCH = 1
    SPILL = 2
    UPKEEP = 3


class Expired(Exception):
    """The answer to an operation that nobody waits for any more: it was not begun."""


Answer = Callable[[object | BaseException], None]
"""Called once per accepted operation, from an I/O thread: what it returned or raised, or Expired."""


@dataclass(eq=False, slots=True)
class _Job:
    work: Callable[[], object]
    answer: Answer
    deadline: float
    cancelled: bool = False
    started: float | None = None
    hung: bool = False


class Ticket(NamedTuple):
    """An accepted operation."""

    job: _Job

    def cancel(self) -> None:
        """If it has not begun it will not; it is answered with Expired. One that runs cannot be stopped."""
        self.job.cancelled = True


class Limits(NamedTuple):
    """`threads` in all, `reserved` of them for demand; queues by class; seconds and number of what hangs."""

    threads: int = 4
    reserved: int = 2
    queue: tuple[int, int, int, int] = (256, 64, 64, 256)
    hung_after: float = 5.0
    most_hung: int = 8


class Load(NamedTuple):
    """What goes on now. `hung_ever` counts operations that ran too long, whether they came back or not."""

    waiting: tuple[int, int, int, int]
    running: int
    hung: int
    hung_ever: int
    refused: tuple[int, int, int, int]


class IoThreads:
    """Operations in, answers out, in no promised order. `clock` is monotonic seconds."""

    def __init__(self, name: str, limits: Limits, clock: Callable[[], float]) -> None:
        self._name = name
        self._limits = limits
        self._clock = clock
        self._queues: list[deque[_Job]] = [deque() for _ in IoClass]
        self._running: dict[_Job, IoClass] = {}
        self._refused = [0, 0, 0, 0]
        self._hung_ever = 0
        self._stopping = False
        self._wake = threading.Condition()
        self._threads: set[threading.Thread] = set()
        for _ in range(limits.threads):
            self._start_thread()

    def submit(self, kind: IoClass, work: Callable[[], object], answer: Answer, deadline: float) -> Ticket | None:
        """Do it soon, by `deadline` if at all; None when there is no place for it."""
        with self._wake:
            self._look_for_hung()
            if self._stopping or len(self._queues[kind]) >= self._limits.queue[kind] or not self._anybody_left():
                self._refused[kind] += 1
                return None
            job = _Job(work, answer, deadline)
            self._queues[kind].append(job)
            self._wake.notify()
        return Ticket(job)

    def load(self) -> Load:
        """Numbers for gauges and breakers. Ask now and then: it also finds what hangs."""
        with self._wake:
            self._look_for_hung()
            waiting = [len(queue) for queue in self._queues]
            return Load(
                (waiting[0], waiting[1], waiting[2], waiting[3]),
                len(self._running),
                self._hung_now(),
                self._hung_ever,
                (self._refused[0], self._refused[1], self._refused[2], self._refused[3]),
            )

    def expire(self) -> None:
        """Answer what waits beyond its deadline, so that nobody waits for a device that does nothing."""
        now = self._clock()
        with self._wake:
            late: list[_Job] = []
            for queue in self._queues:
                late += [job for job in queue if job.cancelled or job.deadline <= now]
                kept = [job for job in queue if not (job.cancelled or job.deadline <= now)]
                queue.clear()
                queue.extend(kept)
        for job in late:
            job.answer(Expired())

    def stop(self, timeout: float) -> bool:
        """Begin nothing more; what waits is answered with Expired. True when no thread is left within `timeout`."""
        with self._wake:
            self._stopping = True
            late = [job for queue in self._queues for job in queue]
            for queue in self._queues:
                queue.clear()
            self._wake.notify_all()
            threads = list(self._threads)
        for job in late:
            job.answer(Expired())
        end = self._clock() + timeout
        for thread in threads:
            thread.join(max(0.0, end - self._clock()))
        return not any(thread.is_alive() for thread in threads)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._carry_out(job)
        finally:
            with self._wake:
                self._threads.discard(threading.current_thread())

    def _carry_out(self, job: _Job) -> None:
        result: object | BaseException
        try:
            result = job.work()
        except Exception as error:
            result = error
        with self._wake:
            del self._running[job]
        job.answer(result)

    def _next(self) -> _Job | None:
        """The next operation to do; None when this thread is not needed any more."""
        while True:
            late: list[_Job] = []
            with self._wake:
                job = self._begin(late)
                while job is None and not late:
                    if self._stopping or len(self._threads) - self._hung_now() > self._limits.threads:
                        return None
                    self._wake.wait()
                    job = self._begin(late)
            for one in late:
                one.answer(Expired())
            if job is not None:
                return job

    def _begin(self, late: list[_Job]) -> _Job | None:
        """Take a job out of its queue; those that came too late go to `late`."""
        now = self._clock()
        for kind in IoClass:
            queue = self._queues[kind]
            while queue and (kind is IoClass.DEMAND or self._lower_may_begin()):
                job = queue.popleft()
                if job.cancelled or job.deadline <= now:
                    late.append(job)
                    continue
                job.started = now
                self._running[job] = kind
                return job
        return None

    def _lower_may_begin(self) -> bool:
        """Whether the threads that are left for demand stay its own."""
        lower = sum(kind is not IoClass.DEMAND and not job.hung for job, kind in self._running.items())
        threads = len(self._threads) - self._hung_now()
        return lower < threads - self._limits.reserved

    def _hung_now(self) -> int:
        return sum(job.hung for job in self._running)

    def _anybody_left(self) -> bool:
        return len(self._threads) > self._hung_now()

    def _look_for_hung(self) -> None:
        """Mark what runs too long, and put a thread in its place while there are not too many."""
        now = self._clock()
        for job in self._running:
            if not job.hung and job.started is not None and now - job.started >= self._limits.hung_after:
                job.hung = True
                self._hung_ever += 1
                if not self._stopping and len(self._threads) < self._limits.threads + self._limits.most_hung:
                    self._start_thread()
