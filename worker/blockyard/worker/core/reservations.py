"""Slots reserved for what engines are about to store: from a scheduler's Fill until each chunk is whole or
given up.

Owns the jobs and how a chunk ceases to be filled. Must never know how a rank's copy goes.
"""

from blockyard.common.identity import Fingerprint, Key, split_keys
from blockyard.common.messages.attach import Fill
from blockyard.common.messages.states import CopyState
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.disk.tier import DiskTier
from blockyard.worker.core.fills import FillBook, FillJob
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.peers.tier import PeerTier
from blockyard.worker.core.sessions import Session
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass

ENGINE_GONE = "engine-gone"
"""Why a copy or fill came to nothing when nobody is left to say how it went."""

_OUTCOMES = ("started", "duplicate", "no-room", "fill-budget")


class Reservations:
    """Makes and ends jobs. Each method is one step of the machine."""

    def __init__(
        self, settings: CoreSettings, counters: Counters, holdings: Holdings, disk: DiskTier, peers: PeerTier
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._holdings = holdings
        self._disk = disk
        self._peers = peers
        self.fills = FillBook(settings.max_parked)
        self.filling = 0
        """Chunks being filled."""
        self.closed = False
        """The worker is being drained: nothing new is taken in."""
        prefix = "blockyard_worker_"
        self._asked = counters.adder(prefix + "fills_asked_total")
        self._committed = counters.adder(prefix + "fills_committed_total")
        refused = {
            reason: counters.adder(prefix + "fills_refused_total", reason=reason)
            for reason in ("no-room", "fill-budget")
        }
        self._tallied = refused | {
            "started": counters.adder(prefix + "fills_started_total"),
            "duplicate": counters.adder(prefix + "fills_duplicate_total"),
        }

    def open(self, session: Session, message: Fill, now: float) -> FillJob | None:
        """A job with slots for its keys as far as there are any; None when the engine has too many jobs."""
        engine = session.engine
        runs = [(run, split_keys(run.keys)) for run in message.runs]
        asked = sum(len(keys) for _, keys in runs)
        self._asked(asked)
        if len(engine.jobs) >= self._settings.max_jobs_per_engine:
            self._tallied["fill-budget"](asked)
            return None
        job = FillJob(engine, session.id, message.job, now + self._settings.fill_deadline)
        self.fills.add(job)
        for run, keys in runs:
            self._reserve_run(job, run.group, run.parent, keys)
        return job

    def commit(self, chunks: list[Chunk]) -> None:
        """These are whole: every rank has filled its area."""
        if not chunks:
            return
        self._holdings.filled(chunks)
        for chunk in chunks:
            self._end(chunk)
        self._committed(len(chunks))

    def abort(self, chunk: Chunk, reason: str) -> None:
        """This chunk will not be whole."""
        self._holdings.abort(chunk)
        self._end(chunk)
        self._counters.add("blockyard_worker_fills_dropped_total", reason=reason)

    def rank_left(self, session: Session) -> None:
        """A rank's link is gone: it can no longer say that it has filled anything."""
        part = 1 << session.rank
        for job in list(session.engine.jobs.values()):
            for chunk in job.open_chunks():
                if not chunk.parts & part:
                    self.abort(chunk, ENGINE_GONE)

    def scheduler_left(self, session: Session) -> None:
        """A scheduler is gone, or has lost track: what it had reserved will not be used."""
        for job in list(session.engine.jobs.values()):
            if job.session == session.id:
                self._abort_job(job, ENGINE_GONE)

    def forget(self, fingerprint: Fingerprint) -> None:
        """Drop every chunk of a world, wherever it is."""
        self._disk.forget(fingerprint)
        for chunk in list(self._holdings.index.values()):
            if chunk.size_class.fingerprint == fingerprint:
                self._purge(chunk)

    def drop(self, keys: list[Key]) -> None:
        """Drop these chunks, wherever they are."""
        for key in keys:
            self._disk.drop(key)
            chunk = self._holdings.index.get(key)
            if chunk is not None:
                self._purge(chunk)

    def _purge(self, chunk: Chunk) -> None:
        if chunk.job is not None:
            self.abort(chunk, "purge")
        elif chunk.state is ChunkState.FILLING:
            (self._peers if chunk.from_peer else self._disk).abandon(chunk)
        else:
            self._holdings.purge(chunk)

    def expire(self, now: float) -> None:
        """Give up the jobs whose deadline has passed."""
        for job in self.fills.expired(now):
            self._abort_job(job, CopyState.DEADLINE.label)

    def _reserve_run(self, job: FillJob, group: int, parent: Key, keys: list[Key]) -> None:
        index, size_class = self._holdings.index, job.engine.world.classes.get(group)
        tally = dict.fromkeys(_OUTCOMES, 0)
        # What is there already is used by this request: it must not make way for the rest of it.
        if size_class is not None:
            present = [index[key] for key in keys if key in index]
            ready = [c for c in present if c.state is ChunkState.READY and c.size_class is size_class]
            self._holdings.touch(self._holdings.lineage(parent, size_class), asked=False)
            self._holdings.touch(ready)
        room = size_class is not None and job.engine.complete and not self.closed
        for key in keys:
            outcome = "no-room"
            if key in index:
                outcome = "duplicate"
                job.entries.setdefault(key, CopyState.DUPLICATE)
            elif job.engine.filling >= self._settings.max_fills_per_engine:
                outcome = "fill-budget"
            elif room and size_class is not None:
                room = self._reserve(job, size_class, parent, key)
                outcome = "started" if room else "no-room"
            if outcome in ("no-room", "fill-budget"):
                job.entries[key] = CopyState.NO_ROOM
            tally[outcome] += 1
            parent = key
        for outcome, times in tally.items():
            if times:
                self._tallied[outcome](times)

    def _reserve(self, job: FillJob, size_class: SizeClass, parent: Key, key: Key) -> bool:
        chunk = self._holdings.reserve(key, parent, size_class, job.engine.id)
        if chunk is None:
            return False
        chunk.job = job
        job.entries[key] = chunk
        job.open += 1
        job.engine.filling += 1
        self.filling += 1
        return True

    def _end(self, chunk: Chunk) -> None:
        """A chunk is no longer being filled."""
        job = chunk.job
        assert job is not None
        chunk.job = None
        job.open -= 1
        job.engine.filling -= 1
        self.filling -= 1
        if job.over:
            self.fills.remove(job)

    def _abort_job(self, job: FillJob, reason: str) -> None:
        for chunk in job.open_chunks():
            self.abort(chunk, reason)
        self.fills.remove(job)
