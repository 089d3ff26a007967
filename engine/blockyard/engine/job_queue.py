"""Jobs between the engine's thread and the copy thread, and their results on the way back.

Owns order (loads before stores), bound, cancelling and the one lock. A job is in exactly one place: queued,
running, or ended with a result.
"""

import time
from collections import deque
from dataclasses import dataclass
from threading import Condition
from typing import Any

from blockyard.common.messages.attach import MAX_KEYS
from blockyard.common.messages.states import CopyState
from blockyard.engine.jobs import CopyJob, CopyResult

MAX_QUEUED = 512
"""Jobs of one kind; a further one ends at once with NO_ROOM (store) or DEADLINE (load)."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job with the device's fence at the time it was submitted."""

    job: CopyJob
    fence: Any = None


class JobQueue:
    """`open` says whether there is a session: a closed queue answers every job with DETACHED."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._loads: deque[QueuedJob] = deque()
        self._stores: deque[QueuedJob] = deque()
        self._running: int | None = None
        self._results: list[CopyResult] = []
        self._unsaid: deque[CopyJob] = deque(maxlen=MAX_QUEUED)
        self.open = False
        self.stopping = False
        self.cut = False

    def put(self, queued: QueuedJob) -> None:
        """Queue a job, or end it at once."""
        job = queued.job
        line = self._loads if job.kind == "load" else self._stores
        with self._changed:
            if not self.open or self.stopping:
                self._end(job, CopyState.DETACHED)
            elif len(line) >= MAX_QUEUED or len(job.keys) > MAX_KEYS:
                self._end(job, CopyState.DEADLINE if job.kind == "load" else CopyState.NO_ROOM)
                self._say_cancelled(job)
            else:
                line.append(queued)
                self._changed.notify_all()

    def refuse(self, job: CopyJob, state: CopyState) -> None:
        """End a job that cannot be run."""
        with self._changed:
            self._end(job, state)
            self._say_cancelled(job)

    def take(self, timeout: float) -> QueuedJob | None:
        """The next job, which is running from now on; None without one after `timeout`, or with something to
        say.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._loads or self._stores or self._unsaid or self.stopping, timeout)
            line = self._loads or self._stores
            if self.stopping or not line:
                return None
            queued = line.popleft()
            self._running = queued.job.job
            self.cut = False
            return queued

    def ended(self, result: CopyResult) -> None:
        """The running job is over."""
        with self._changed:
            self._running = None
            self._results.append(result)
            self._changed.notify_all()

    def take_results(self, timeout: float) -> list[CopyResult]:
        """Results since the last call; waits up to `timeout` seconds for one if a job is under way."""
        with self._changed:
            if timeout > 0:
                self._changed.wait_for(lambda: self._results or not self._busy(), timeout)
            results, self._results = self._results, []
            return results

    def take_unsaid(self) -> list[CopyJob]:
        """Stores that ended without the worker knowing; at most MAX_QUEUED, others by its deadline."""
        with self._changed:
            unsaid = list(self._unsaid)
            self._unsaid.clear()
            return unsaid

    def wait(self, jobs: set[int], timeout: float) -> bool:
        """Cancel what is queued of these; wait for what runs, and cut it when `timeout` has passed."""
        deadline = time.monotonic() + timeout
        with self._changed:
            for line in (self._loads, self._stores):
                for queued in [queued for queued in line if queued.job.job in jobs]:
                    line.remove(queued)
                    self._end(queued.job, CopyState.CANCELLED)
                    self._say_cancelled(queued.job)
            ended = self._changed.wait_for(lambda: self._running not in jobs, deadline - time.monotonic())
            self.cut = self.cut or not ended
            return ended

    def pause(self, seconds: float) -> None:
        """Sleep, unless told to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping, max(0.0, seconds))

    def set_open(self, is_open: bool) -> None:
        """Begin or end a session; at its end every queued job ends with DETACHED."""
        with self._changed:
            self.open = is_open
            if not is_open:
                for queued in (*self._loads, *self._stores):
                    self._end(queued.job, CopyState.DETACHED)
                self._loads.clear()
                self._stores.clear()
                self._unsaid.clear()
                self._changed.notify_all()

    def stop(self) -> None:
        """Let the copy thread end after the chunk being copied."""
        with self._changed:
            self.stopping = True
            self.cut = True
            self._changed.notify_all()

    def _busy(self) -> bool:
        return self._running is not None or bool(self._loads or self._stores)

    def _end(self, job: CopyJob, state: CopyState) -> None:
        self._results.append(CopyResult(job.job, job.kind, [state] * len(job.keys)))

    def _say_cancelled(self, job: CopyJob) -> None:
        """The worker has reserved slots for a store; it frees them sooner if it is told."""
        if job.kind == "store":
            self._unsaid.append(job)
            self._changed.notify_all()
