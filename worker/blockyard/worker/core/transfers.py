"""Copies under way: from a rank's Resolve, which makes it a copier, to its word that the copy has ended.

Owns the order of these steps and the copiers of chunks. Must never know how sessions come and go.
"""

from collections.abc import Callable

from blockyard.common.identity import Key, split_keys
from blockyard.common.messages.attach import Fill, LoadDone, Resolve, Resolved, StoreDone
from blockyard.common.messages.states import CopyState
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.fills import FillJob
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction, Send
from blockyard.worker.core.pins import Copy, CopyKind, GrantBook
from blockyard.worker.core.reservations import ENGINE_GONE, Reservations
from blockyard.worker.core.sessions import Session
from blockyard.worker.core.settings import CoreSettings

Place = tuple[CopyState, Chunk | None]

_OK, _CORRUPT = CopyState.OK.label, CopyState.CORRUPT.label
_OUTCOME_OF = {int(state): state.label for state in CopyState if state is not CopyState.DUPLICATE}
_LEG: dict[CopyKind, str] = {"store": "gpu_to_host", "load": "host_to_gpu"}


class Transfers:
    """Moves fills and copies on. Each method is one step of the machine."""

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        holdings: Holdings,
        grants: GrantBook,
        reservations: Reservations,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._holdings = holdings
        self._grants = grants
        self._reservations = reservations
        self._fills = reservations.fills
        self._emit = emit
        self.loads = 0
        """Areas being loaded."""
        prefix = "blockyard_worker_"
        self._copy_bytes = {kind: counters.adder(prefix + "copy_bytes_total", leg=leg) for kind, leg in _LEG.items()}
        self._copy_seconds = {
            kind: counters.adder(prefix + "copy_seconds_total", leg=leg) for kind, leg in _LEG.items()
        }
        self._loads_resolved = counters.adder(prefix + "loads_resolved_total")
        self._loads_completed = counters.adder(prefix + "loads_completed_total")

    def fill(self, session: Session, message: Fill, now: float) -> None:
        """Reserve slots for a job's keys, then answer the ranks that already asked for it."""
        job = self._reservations.open(session, message, now)
        if job is None:
            return
        for rank in list(session.engine.ranks.values()):
            parked = self._fills.parked.pop((rank.id, job.number), None)
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
        elif not message.wait_ms or not self._fills.park(session.id, message, now + message.wait_ms / 1000):
            self._answer_all(session, message, CopyState.UNKNOWN_JOB)

    def done(self, session: Session, message: StoreDone | LoadDone) -> bool:
        """A rank's copies of a job have ended; False when none were under way."""
        if isinstance(message, StoreDone):
            copy = session.copies.pop(("store", message.job), None)
        else:
            copy = session.copies.pop(("load", message.job), None)
        if copy is None:
            return False
        self._copy_bytes[copy.kind](message.copied)
        self._copy_seconds[copy.kind](message.micros / 1e6)
        missing = len(copy.chunks) - len(message.states)
        self._copy_ended(session, copy, message.states + bytes([CopyState.COPY_ERROR]) * missing)
        return True

    def end_copies(self, session: Session) -> None:
        """Nothing of this session touches the pool any more: what it had not finished has failed."""
        for copy in list(session.copies.values()):
            self._copy_ended(session, copy, b"")
        session.copies.clear()

    def rank_left(self, session: Session) -> None:
        """A rank's link is gone: it waits for no answer, and fills nothing any more."""
        self._fills.unpark_session(session.id)
        self._reservations.rank_left(session)

    def expire(self, now: float, sessions: dict[int, Session]) -> None:
        """Tell the ranks that have waited too long for a Fill."""
        for parked in self._fills.unpark_late(now):
            self._answer_all(sessions[parked.session], parked.message, CopyState.UNKNOWN_JOB)

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
            self._fills.remove(job)

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
        self._loads_resolved(given)
        if given < len(keys):
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
        outcomes = [_outcome(state) for state in states] or [ENGINE_GONE] * len(copy.chunks)
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
                self._reservations.abort(chunk, outcome)
            else:
                chunk.parts |= part
                if chunk.parts == chunk.size_class.all_parts:
                    whole.append(chunk)
        self._reservations.commit(whole)

    def _load_ended(self, ended: list[tuple[Chunk, str]]) -> None:
        self.loads -= len(ended)
        completed = 0
        for chunk, outcome in ended:
            if outcome == _CORRUPT and chunk.state is ChunkState.READY:
                self._count("checksum_mismatches_total", 1)
                self._holdings.quarantine(chunk)
            else:
                self._holdings.use_ended(chunk)
            if outcome == _OK:
                completed += 1
            else:
                self._count("loads_failed_total", 1, reason=outcome)
        self._loads_completed(completed)

    def _count(self, name: str, value: float, **labels: str) -> None:
        self._counters.add("blockyard_worker_" + name, value, **labels)


def _outcome(state: int) -> str:
    """What a rank reported, in the metrics' words; what a rank cannot mean is an error like any other."""
    return _OUTCOME_OF.get(state, CopyState.COPY_ERROR.label)
