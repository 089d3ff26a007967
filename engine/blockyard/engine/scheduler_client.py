"""The scheduler's side of an attachment: what is there, pins, fills, counters.

Every call is made by one thread, the engine's scheduler; a background thread only connects and watches for
hang-ups. No call raises because of the link, except `grant`, which says `Detached`; a call while detached
costs microseconds. Must never know blocks, devices or what a chunk's bytes are.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.messages.attach import MAX_KEYS, Acquire, Fill, Finish, Forget, GroupShape, Hints, Release, Run
from blockyard.engine.answers import Answers, Grant
from blockyard.engine.attacher import Attacher
from blockyard.engine.detached import NO_WORKER, TIMEOUT, Detached, Reason
from blockyard.engine.hello import hello_of
from blockyard.engine.hint_desk import HintDesk
from blockyard.engine.identity import EngineIdentity, bounded_name
from blockyard.engine.report import Report
from blockyard.engine.scheduler_link import SchedulerLink
from blockyard.engine.session import Session

__all__ = ["Grant", "SchedulerClient"]

ANSWER_SECONDS = 1.0
LONGEST_WAIT = 0.6 * ANSWER_SECONDS
"""So that a late answer is not taken for a worker that does not answer."""
"""A worker that has not answered an acquire by then is taken for stuck. A healthy one takes well under 1 ms, but on
a machine whose CPUs are all busy it may not run for a while, and attaching anew costs more than waiting: until then
each request that waits loses only its own acquire deadline, and it is the breaker that decides after this.
"""

MAX_RUNS = 64
"""Runs in one message, as the protocol has it."""

log = logging.getLogger(__name__)


class SchedulerClient:
    """Attach with `start`; then ask, fill and release in step with the scheduler. `report` takes what is counted."""

    def __init__(
        self,
        socket_path: str | Path,
        identity: EngineIdentity,
        shapes: list[GroupShape],
        local_ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
        report: Report | None = None,
    ) -> None:
        self._clock = clock
        self._lock = Lock()
        self._link: SchedulerLink | None = None
        self._reason = Reason(NO_WORKER, "not attached yet")
        self._answers = Answers()
        self._report = report or Report()
        self._hints = HintDesk()
        self._forget: str | None = None
        self._forgotten_by: int | None = None
        self._closed = False
        hello = hello_of("scheduler", identity, shapes, local_ranks)
        self._attacher = Attacher(socket_path, hello, self._take_over, self._watch, self._missed, clock)

    @property
    def state(self) -> str:
        """`attached` or `detached`."""
        return "detached" if self._link is None else "attached"

    @property
    def detached_reason(self) -> str:
        """Bounded word for metrics (see detached.py); empty while attached."""
        return self._reason.word if self._link is None else ""

    @property
    def detached_detail(self) -> str:
        """One line for people; empty while attached."""
        return self._reason.detail if self._link is None else ""

    @property
    def detachments(self) -> dict[str, int]:
        """How often an attempt or a session came to nothing, by reason."""
        return dict(self._attacher.failures)

    @property
    def pin_ttl(self) -> float:
        """Seconds that a grant's pins stand, as the worker said; 0 while detached."""
        link = self._link
        return link.pin_ttl if link else 0.0

    def start(self) -> None:
        """Begin attaching in the background."""
        self._attacher.start()

    def close(self, timeout: float = 2.0) -> None:
        """Say goodbye and end the background thread."""
        self._attacher.stop()
        with self._lock:
            self._closed = True
            if self._link is not None:
                self._link.goodbye()
                self._set_detached(Reason(NO_WORKER, "closed"))
        self._attacher.join(timeout)

    def acquire(self, request: str, runs: list[Run], wait: float = 0.0) -> int | None:
        """Ask for these runs to be pinned; a number for `grant`, or None (detached, or too many).

        The answer may be up to `wait` seconds late, at most LONGEST_WAIT, if the worker can read more from disk.
        """
        with self._lock:
            if not _fits(runs) or self._answers.full or not self._hinted(request):
                return None
            seq = self._answers.ask(_keys(runs), self._clock())
            self._send(Acquire(seq, bounded_name(request), runs, int(1000 * min(wait, LONGEST_WAIT))))
            if self._forget is not None and self._forgotten_by is None:
                self._forgotten_by = seq
            return seq if self._link else None

    def grant(self, seq: int, timeout: float = 0.0) -> Grant | None:
        """The answer to `acquire`, None if it is not there within `timeout`. Raises Detached when it never
        comes.
        """
        with self._lock:
            found = self._answers.take(seq)
            if found is None and self._answers.awaits(seq):
                self._read(self._clock() + timeout, seq)
                found = self._answers.take(seq)
            if found is None and not self._answers.awaits(seq):
                raise Detached(self._reason)
            return found

    def abandon(self, seq: int) -> None:
        """Nobody will ask for this answer any more: what it pins is released when it comes."""
        with self._lock:
            self._give_back(self._answers.abandon(seq))

    def release(self, grant: Grant, keys: bytes = b"") -> None:
        """Unpin these keys of a grant, or all of it; nothing happens if the grant's session is gone."""
        with self._lock:
            if grant.number and self._link is not None and grant.attachment == self._link.number:
                self._send(Release(grant.number, keys))

    def fill(self, job: int, request: str, runs: list[Run]) -> bool:
        """Announce what the ranks are about to store under `job`; False (detached, or too many keys): submit
        no such job.
        """
        with self._lock:
            return _fits(runs) and self._hinted(request) and self._send(Fill(job, bounded_name(request), runs))

    def finish(self, request: str) -> None:
        """The request is over: nothing stays pinned for it."""
        with self._lock:
            self._hints.finished(bounded_name(request))
            self._send(Finish(bounded_name(request)))

    def hint(self, hints: Hints) -> None:
        """What a request says of itself: told before its first question or store, in each session that takes it."""
        with self._lock:
            self._hints.put(hints)

    def unhint(self, request: str) -> None:
        """The request is over: its hints are dropped here, and at the worker if it was not told of the end yet."""
        with self._lock:
            if self._hints.drop(bounded_name(request)):
                self._send(Finish(bounded_name(request)))

    def forget(self, reason: str) -> None:
        """Drop every chunk of this engine's fingerprint.

        Said again at each attachment until a later request was answered: it must reach a worker that lives
        on.
        """
        with self._lock:
            self._forget = reason[:4096]
            self._forgotten_by = None
            self._send(Forget(self._forget))

    def count(self, name: str, label: str = "", value: float = 1) -> None:
        """Add to one of the engine's counters (metric name, value of its only label)."""
        self._report.add(name, label, value)

    def flush(self) -> None:
        """Send what has been counted, and notice an overdue answer; call once per step."""
        with self._lock:
            if self._link is None:
                return
            self._push(self._link)
            if self._answers.waiting and self._link is not None:
                self._read(self._clock(), None)
            if self._link is not None:
                for message in self._report.take():
                    self._send(message)

    def _send(self, message: SchedulerLink.Outgoing) -> bool:
        """Send if attached; trouble detaches."""
        if self._link is None:
            return False
        try:
            self._link.send(message)
        except Detached as trouble:
            self._detach(trouble.reason)
        return self._link is not None

    def _hinted(self, request: str) -> bool:
        """Whether the worker is there, and has been told the hints of the request if it takes any."""
        link = self._link
        if link is None:
            return False
        hints = self._hints.take(bounded_name(request)) if link.takes_hints else None
        return hints is None or self._send(hints)

    def _push(self, link: SchedulerLink) -> None:
        """Send what the worker did not read in time."""
        try:
            link.push()
        except Detached as trouble:
            self._detach(trouble.reason)

    def _read(self, deadline: float, seq: int | None) -> None:
        """Take answers until `seq` has come or the deadline has passed; an overdue one detaches."""
        link = self._link
        assert link is not None
        try:
            while self._link is link and (seq is None or self._answers.awaits(seq)):
                message = link.receive(max(0.0, deadline - self._clock()))
                if message is None:
                    break
                waited, unwanted = self._answers.answered(message, link.number, self._clock())
                self._report.add("blockyard_engine_acquire_seconds", "", waited)
                self._attacher.breaker.answered()
                self._confirm_forget(message.seq)
                self._give_back(unwanted)
        except Detached as trouble:
            self._detach(trouble.reason)
        if self._answers.longest_wait(self._clock()) > ANSWER_SECONDS:
            self._detach(Reason(TIMEOUT, f"acquire not answered within {ANSWER_SECONDS} s"))

    def _confirm_forget(self, seq: int) -> None:
        """An answer to a later question proves that a forget before it was read."""
        if self._forgotten_by is not None and seq >= self._forgotten_by:
            self._forget = None
            self._forgotten_by = None

    def _give_back(self, grant: Grant | None) -> None:
        if grant is not None and grant.number:
            self._send(Release(grant.number))

    def _detach(self, reason: Reason) -> None:
        log.warning("blockyard: scheduler detached (%s): %s", *reason)
        self._set_detached(reason)
        self._attacher.lost(reason)

    def _set_detached(self, reason: Reason) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._reason = reason
        self._answers.clear()
        self._hints.session_ended()
        self._forgotten_by = None

    # Called by the attacher's thread.

    def _take_over(self, session: Session, number: int) -> None:
        with self._lock:
            if self._closed:
                session.discard()
                return
            self._link = SchedulerLink(session, number, self._clock)
            log.info("blockyard: scheduler attached to worker %s", session.welcome.worker)
            if self._forget is not None:
                self._send(Forget(self._forget))

    def _watch(self) -> int | None:
        """Descriptor to watch for a hang-up; None once detached. Detaches when the worker is gone, and sends what is
        left of an engine that has no more steps.
        """
        with self._lock:
            if self._link is not None and self._link.hung_up():
                self._detach(Reason(NO_WORKER, "worker closed the session"))
            if self._link is not None:
                self._push(self._link)
            return None if self._link is None else self._link.fileno()

    def _missed(self, reason: Reason) -> None:
        if reason != self._reason:
            log.warning("blockyard: scheduler cannot attach (%s): %s", *reason)
        self._reason = reason


def _keys(runs: list[Run]) -> int:
    return sum(len(run.keys) for run in runs) // DIGEST_BYTES


def _fits(runs: list[Run]) -> bool:
    """Whether one message may carry these runs."""
    return 0 < len(runs) <= MAX_RUNS and _keys(runs) <= MAX_KEYS
