"""Stores and loads under way: from a scheduler's Fill and a rank's Resolve to the rank's word that it has
ended.

Owns the order of these steps and the copiers of chunks. Must never know how sessions come and go.
"""

from collections.abc import Callable

from blockyard.common.identity import Fingerprint, Key, split_keys
from blockyard.common.messages.attach import Fill, LoadDone, Resolve, Resolved, StoreDone
from blockyard.common.messages.states import CopyState
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.fills import FillBook, FillJob
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction, Send
from blockyard.worker.core.pins import Copy, GrantBook
from blockyard.worker.core.sessions import Session
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass

Place = tuple[CopyState, Chunk | None]

_OK, _CORRUPT, _GONE = CopyState.OK.label, CopyState.CORRUPT.label, "engine-gone"
_OUTCOME_OF = {int(state): state.label for state in CopyState if state is not CopyState.DUPLICATE}
_OUTCOMES = ("started", "duplicate", "no-room", "fill-budget")
_LEG = {"store": "gpu_to_host", "load": "host_to_gpu"}


class Transfers:
    """Moves fills and copies on. Each method is one step of the machine."""

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        holdings: Holdings,
        grants: GrantBook,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._holdings = holdings
        self._grants = grants
        self._emit = emit
        self.fills = FillBook(settings.max_parked)
        self.filling = 0
        """Chunks being filled."""
        self.loads = 0
        """Areas being loaded."""

    def fill(self, session: Session, message: Fill, now: float) -> None:
        """Reserve slots for a job's keys, then answer the ranks that already asked for it."""
        engine = session.engine
        runs = [(run, split_keys(run.keys)) for run in message.runs]
        asked = sum(len(keys) for _, keys in runs)
        self._count("fills_asked_total", asked)
        if len(engine.jobs) >= self._settings.max_jobs_per_engine:
            self._count("fills_refused_total", asked, reason="fill-budget")
            return
        job = FillJob(engine, session.id, message.job, now + self._settings.fill_deadline)
        self.fills.add(job)
        for run, keys in runs:
            self._reserve_run(job, run.group, run.parent, keys)
        for rank in list(engine.ranks.values()):
            parked = self.fills.parked.pop((rank.id, job.number), None)
            if parked is not None:
                self._resolve_store(rank, parked.message, job)

    def resolve(self, session: Session, message: Resolve, now: float) -> None:
        """Tell a rank the places of a job; a store may wait for its Fill."""
        if message.kind == "load":
            self._resolve_load(session, message)
            return
        job = session.engine.jobs.get(message.job)
        if job is not None:
            self._resolve_store(session, message, job)
        elif not message.wait_ms or not self.fills.park(session.id, message, now + message.wait_ms / 1000):
            self._answer_all(session, message, CopyState.UNKNOWN_JOB)

    def done(self, session: Session, message: StoreDone | LoadDone) -> bool:
        """A rank's copies of a job have ended; False when none were under way."""
        if isinstance(message, StoreDone):
            copy = session.copies.pop(("store", message.job), None)
        else:
            copy = session.copies.pop(("load", message.job), None)
        if copy is None:
            return False
        self._count("copy_bytes_total", message.copied, leg=_LEG[copy.kind])
        self._count("copy_seconds_total", message.micros / 1e6, leg=_LEG[copy.kind])
        missing = len(copy.chunks) - len(message.states)
        self._copy_ended(session, copy, message.states + bytes([CopyState.COPY_ERROR]) * missing)
        return True

    def end_copies(self, session: Session) -> None:
        """Nothing of this session touches the pool any more: what it had not finished has failed."""
        for copy in list(session.copies.values()):
            self._copy_ended(session, copy, b"")
        session.copies.clear()

    def rank_left(self, session: Session) -> None:
        """A rank's link is gone: it can no longer say that it has filled anything."""
        self.fills.unpark_session(session.id)
        part = 1 << session.rank
        for job in list(session.engine.jobs.values()):
            for chunk in job.open_chunks():
                if not chunk.parts & part:
                    self._abort(chunk, _GONE)

    def scheduler_left(self, session: Session) -> None:
        """A scheduler is gone, or has lost track: what it had reserved will not be used."""
        for job in list(session.engine.jobs.values()):
            if job.session == session.id:
                self._abort_job(job, _GONE)

    def forget(self, fingerprint: Fingerprint) -> None:
        """Drop every chunk of a world."""
        for chunk in list(self._holdings.index.values()):
            if chunk.size_class.fingerprint != fingerprint:
                continue
            if chunk.state is ChunkState.FILLING:
                self._abort(chunk, "purge")
            else:
                self._holdings.purge(chunk)

    def expire(self, now: float, sessions: dict[int, Session]) -> None:
        """End what has waited too long."""
        for job in self.fills.expired(now):
            self._abort_job(job, CopyState.DEADLINE.label)
        for parked in self.fills.unpark_late(now):
            self._answer_all(sessions[parked.session], parked.message, CopyState.UNKNOWN_JOB)

    def _reserve_run(self, job: FillJob, group: int, parent: Key, keys: list[Key]) -> None:
        index, size_class = self._holdings.index, job.engine.world.classes.get(group)
        tally = dict.fromkeys(_OUTCOMES, 0)
        # What is there already is used by this request: it must not make way for the rest of it.
        if size_class is not None:
            present = [index[key] for key in keys if key in index]
            ready = [c for c in present if c.state is ChunkState.READY and c.size_class is size_class]
            self._holdings.touch(self._holdings.lineage(parent, size_class) + ready)
        room = size_class is not None and job.engine.complete
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
        self._count_reserved(tally)

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

    def _count_reserved(self, tally: dict[str, int]) -> None:
        self._count("fills_started_total", tally["started"])
        self._count("fills_duplicate_total", tally["duplicate"])
        for reason in ("no-room", "fill-budget"):
            self._count("fills_refused_total", tally[reason], reason=reason)

    def _count(self, name: str, value: float, **labels: str) -> None:
        if value:
            self._counters.add("blockyard_worker_" + name, value, **labels)

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

    def _abort(self, chunk: Chunk, reason: str) -> None:
        self._holdings.abort(chunk)
        self._end(chunk)
        self._count("fills_dropped_total", 1, reason=reason)

    def _abort_job(self, job: FillJob, reason: str) -> None:
        for chunk in job.open_chunks():
            self._abort(chunk, reason)
        self.fills.remove(job)

    def _resolve_store(self, session: Session, message: Resolve, job: FillJob) -> None:
        part = 1 << session.rank
        if job.resolved & part or not self._may_copy(session, message):
            self._answer_all(session, message, CopyState.STALE)
            return
        job.resolved |= part
        places: list[Place] = []
        given: set[Key] = set()
        for key in split_keys(message.keys):
            entry = job.entries.get(key, CopyState.STALE)
            if not isinstance(entry, Chunk):
                places.append((entry, None))
            elif entry.job is job and key not in given:
                places.append((CopyState.OK, entry))
                given.add(key)
            else:
                places.append((CopyState.STALE, None))
        self._answer(session, message, places)
        if job.over:
            self.fills.remove(job)

    def _resolve_load(self, session: Session, message: Resolve) -> None:
        keys = split_keys(message.keys)
        grant = self._grants.grants.get(message.grant)
        pinned: dict[Key, Chunk] = {}
        if grant is not None and grant.engine is session.engine and self._may_copy(session, message):
            pinned = grant.chunks
        places: list[Place] = []
        for key in keys:
            chunk = pinned.get(key)
            if chunk is not None and chunk.state is ChunkState.READY:
                places.append((CopyState.OK, chunk))
            else:
                places.append((CopyState.STALE, None))
        self._answer(session, message, places)
        given = sum(chunk is not None for _, chunk in places)
        self.loads += given
        self._count("loads_resolved_total", given)
        self._count("loads_refused_total", len(keys) - given, reason=CopyState.STALE.label)

    def _may_copy(self, session: Session, message: Resolve) -> bool:
        """A job is copied once at a time, and a rank has only so many under way."""
        if (message.kind, message.job) in session.copies:
            return False
        return len(session.copies) < self._settings.max_copies_per_session

    def _answer_all(self, session: Session, message: Resolve, state: CopyState) -> None:
        self._answer(session, message, [(state, None)] * len(split_keys(message.keys)))

    def _answer(self, session: Session, message: Resolve, places: list[Place]) -> None:
        """Send the places; from here on the rank is a copier of each."""
        chunks = [chunk for _, chunk in places]
        for chunk in chunks:
            if chunk is not None:
                chunk.copiers += 1
        if any(chunk is not None for chunk in chunks):
            session.copies[message.kind, message.job] = Copy(message.kind, message.job, chunks)
        answer = Resolved(
            message.seq,
            message.job,
            bytes([state for state, _ in places]),
            [0 if chunk is None else chunk.slot for chunk in chunks],
            [0 if chunk is None else chunk.generation for chunk in chunks],
            [0 if chunk is None else chunk.offset for chunk in chunks],
        )
        self._emit(Send(session.id, answer))

    def _copy_ended(self, session: Session, copy: Copy, states: bytes) -> None:
        """A copy is over, with one state per key; with none at all, its process never said how it went."""
        outcomes = [_outcome(state) for state in states] or [_GONE] * len(copy.chunks)
        ended = [(c, outcome) for c, outcome in zip(copy.chunks, outcomes, strict=False) if c is not None]
        for chunk, _ in ended:
            chunk.copiers -= 1
        if copy.kind == "store":
            self._store_ended(session, ended)
        else:
            self._load_ended(ended)

    def _store_ended(self, session: Session, ended: list[tuple[Chunk, str]]) -> None:
        part = 1 << session.rank
        whole: list[Chunk] = []
        for chunk, outcome in ended:
            if chunk.state is not ChunkState.FILLING:
                self._holdings.use_ended(chunk)
            elif outcome != _OK:
                self._abort(chunk, outcome)
            else:
                chunk.parts |= part
                if chunk.parts == chunk.size_class.all_parts:
                    whole.append(chunk)
        self._holdings.filled(whole)
        for chunk in whole:
            self._end(chunk)
        self._count("fills_committed_total", len(whole))

    def _load_ended(self, ended: list[tuple[Chunk, str]]) -> None:
        self.loads -= len(ended)
        for chunk, outcome in ended:
            if outcome == _CORRUPT and chunk.state is ChunkState.READY:
                self._count("checksum_mismatches_total", 1)
                self._holdings.quarantine(chunk)
            else:
                self._holdings.use_ended(chunk)
            if outcome == _OK:
                self._count("loads_completed_total", 1)
            else:
                self._count("loads_failed_total", 1, reason=outcome)


def _outcome(state: int) -> str:
    """What a rank reported, in the metrics' words; what a rank cannot mean is an error like any other."""
    return _OUTCOME_OF.get(state, CopyState.COPY_ERROR.label)
