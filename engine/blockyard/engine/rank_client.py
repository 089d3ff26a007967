"""A rank's side of an attachment: one thread that owns the session, the mapped pool and every copy.

`submit`, `finished` and `wait` are called by the engine's thread and never raise because of the link. A
result is given only once nothing of its job is in flight. Must never know requests or tokens.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import msgspec

from blockyard.common.messages.attach import GroupShape
from blockyard.common.messages.states import CopyState
from blockyard.engine.breaker import Breaker
from blockyard.engine.copies.base import DeviceCopier
from blockyard.engine.detached import LAYOUT, NO_WORKER, Detached, Reason
from blockyard.engine.hello import hello_of
from blockyard.engine.identity import EngineIdentity
from blockyard.engine.job_queue import JobQueue, QueuedJob
from blockyard.engine.jobs import CopyJob, CopyResult
from blockyard.engine.pool_map import MapRefused, PoolMap
from blockyard.engine.rank_link import RankLink
from blockyard.engine.session import Session, open_session
from blockyard.engine.transfer import Transfer, Verifier, Verify

__all__ = ["RankClient", "Verify"]

IDLE_SECONDS = 0.5
"""How long the copy thread sleeps without a job before it looks whether the worker is still there."""

log = logging.getLogger(__name__)


class RankClient:
    """Attach with `start`; then submit jobs and take their results."""

    def __init__(
        self,
        socket_path: str | Path,
        identity: EngineIdentity,
        rank: int,
        local_ranks: int,
        shapes: list[GroupShape],
        copier: DeviceCopier,
        verify: Verify = "off",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.detachments: Counter[str] = Counter()
        """How often an attempt or a session came to nothing, by reason."""
        self._socket_path = socket_path
        self._rank = rank
        self._hello = hello_of("rank", identity, shapes, local_ranks, rank)
        self._shapes = {shape.group: shape.area_bytes for shape in shapes}
        self._copier = copier
        self._verifier = Verifier(verify)
        self._clock = clock
        self._breaker = Breaker()
        self._queue = JobQueue()
        self._reason = Reason(NO_WORKER, "not attached yet")
        self._link: RankLink | None = None
        self._map: PoolMap | None = None
        self._thread = Thread(target=self._run, name=f"blockyard-copy-{rank}", daemon=True)

    @property
    def state(self) -> str:
        """`attached` or `detached`."""
        return "attached" if self._queue.open else "detached"

    @property
    def detached_reason(self) -> str:
        """Bounded word for metrics (see detached.py); empty while attached."""
        return "" if self._queue.open else self._reason.word

    @property
    def detached_detail(self) -> str:
        """One line for people; empty while attached."""
        return "" if self._queue.open else self._reason.detail

    def start(self) -> None:
        """Start the copy thread, which attaches in the background."""
        self._thread.start()

    def close(self, timeout: float = 5.0) -> bool:
        """End every job, say goodbye, unmap; False if a copy still runs after `timeout`."""
        self._queue.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def submit(self, job: CopyJob) -> None:
        """Queue a job. While detached or with a full queue its result is there at once."""
        known = len(job.blocks) == len(job.keys) and all(blocks.group in self._shapes for blocks in job.blocks)
        if known:
            self._queue.put(QueuedJob(job, self._copier.fence()))
        else:
            self._queue.refuse(job, CopyState.COPY_ERROR)

    def refuse(self, job: CopyJob, state: CopyState) -> None:
        """End a job at once, for this reason."""
        self._queue.refuse(job, state)

    def finished(self, timeout: float = 0.0) -> list[CopyResult]:
        """Results since the last call; waits only if told to, up to `timeout` seconds, while a job is under way."""
        return self._queue.take_results(timeout)

    def wait(self, jobs: set[int], timeout: float) -> bool:
        """True once nothing of these jobs is in flight (results still come by `finished`).

        Jobs that wait in the queue are cancelled at once. A running one may end whole within `timeout`; past
        it, it is cut after the chunk being copied and False is returned: wait again.
        """
        return self._queue.wait(jobs, timeout)

    # All below runs in the copy thread.

    def _run(self) -> None:
        while not self._queue.stopping:
            try:
                self._turn()
            except Exception as error:
                # Whatever it was: a queue that stays open without this thread would hold requests for ever.
                log.exception("blockyard: rank %d: the session is given up", self._rank)
                self._detach(Reason(LAYOUT, f"copy thread: {error}"))
        if self._link is not None:
            self._link.goodbye()
        self._detach(Reason(NO_WORKER, "closed"))

    def _turn(self) -> None:
        if self._link is None:
            self._attach_when_due()
        elif (queued := self._queue.take(IDLE_SECONDS)) is not None:
            self._serve(self._link, queued)
        else:
            self._look(self._link)

    def _attach_when_due(self) -> None:
        if not self._breaker.admits(self._clock()):
            self._queue.pause(self._breaker.retry_at - self._clock())
            return
        try:
            session = open_session(self._socket_path, self._hello)
            self._adopt(session)
        except Detached as trouble:
            self._detach(trouble.reason)

    def _adopt(self, session: Session) -> None:
        """Map the session's memory and open the queue; the old map went when the old session did."""
        welcome = session.welcome
        self._hello = msgspec.structs.replace(self._hello, previous=welcome.session, previous_boot=welcome.boot_id)
        try:
            pool, table = session.memory
            mapped = PoolMap(pool, table, welcome)
        except MapRefused as error:
            session.link.close()
            raise Detached(Reason(LAYOUT, str(error))) from None
        self._map = mapped
        self._link = RankLink(session, self._rank, mapped.slots)
        if {group: grant.area_bytes for group, grant in self._link.groups.items()} != self._shapes:
            raise Detached(Reason(LAYOUT, "worker granted other groups or area sizes than were asked for"))
        self._copier.bind(mapped.pool)
        self._queue.set_open(True)
        log.info("blockyard: rank %d attached to worker %s", self._rank, welcome.worker)

    def _serve(self, link: RankLink, queued: QueuedJob) -> None:
        """Run one job to its end, whatever happens."""
        assert self._map is not None
        transfer = Transfer(link, self._map, self._copier, self._verifier, lambda: self._queue.cut)
        trouble: Reason | None = None
        try:
            result = transfer.run(queued)
            self._breaker.answered()
        except Detached as lost:
            trouble = lost.reason
            result = transfer.lost(queued)
        except Exception as error:
            log.exception("blockyard: rank %d: job %d failed", self._rank, queued.job.job)
            trouble = Reason(LAYOUT, f"copy thread: {error}")
            result = transfer.lost(queued)
        if trouble is not None:
            self._detach(trouble)
        self._queue.ended(result)

    def _look(self, link: RankLink) -> None:
        """Without a job: tell the worker of cancelled stores, and notice when it is gone."""
        try:
            for job in self._queue.take_unsaid():
                link.cancel(job)
            link.look()
        except Detached as trouble:
            self._detach(trouble.reason)

    def _detach(self, reason: Reason) -> None:
        """No copy runs: unmap, end what is queued, and let the breaker say when to try again."""
        if not self._queue.stopping:
            if self._queue.open or reason != self._reason:
                log.warning("blockyard: rank %d detached (%s): %s", self._rank, *reason)
            self.detachments[reason.word] += 1
            self._breaker.failed(self._clock())
        self._reason = reason
        link, self._link = self._link, None
        mapped, self._map = self._map, None
        try:
            if link is not None:
                link.close()
            self._copier.unbind()
            if mapped is not None:
                mapped.close()
        except Exception:
            log.exception("blockyard: rank %d: the old session's memory stays mapped", self._rank)
        self._queue.set_open(False)
