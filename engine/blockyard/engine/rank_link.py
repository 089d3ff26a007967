"""One session of a rank: resolves places and reports ends. Every trouble is a Detached with its reason.

Owns the checks of what a worker answers: no place outside the pool ever reaches a copy.
"""

from typing import NamedTuple

from blockyard.common.codec import FrameRefused
from blockyard.common.link import LinkClosed, LinkTimeout
from blockyard.common.messages.attach import (
    Bye,
    Closing,
    GroupGrant,
    LoadDone,
    Resolve,
    Resolved,
    StoreDone,
    ToEngine,
)
from blockyard.common.messages.states import CopyState
from blockyard.engine.detached import NO_WORKER, REFUSED, TIMEOUT, Detached, Reason
from blockyard.engine.jobs import CopyJob, CopyKind
from blockyard.engine.session import Session, hung_up

RESOLVE_SECONDS: dict[CopyKind, float] = {"load": 0.25, "store": 1.0}
STORE_WAIT_MS = 100
"""How long the worker may hold a store's question until the scheduler's Fill, sent before, has arrived."""

SEND_SECONDS = 0.25


class Place(NamedTuple):
    """Where one key's area lies: `offset` of this rank's area in the pool. Only meaningful when `state` is
    OK.
    """

    state: CopyState
    slot: int
    generation: int
    offset: int


class RankLink:
    """`groups` is the geometry that the worker granted."""

    def __init__(self, session: Session, rank: int, slots: int) -> None:
        self.groups: dict[int, GroupGrant] = {grant.group: grant for grant in session.welcome.groups}
        self.rank = rank
        self._pool_bytes = session.welcome.pool_bytes
        self._slots = slots
        self._link = session.link
        self._seq = 0

    def resolve(self, job: CopyJob, wait_ms: int) -> list[Place]:
        """Places of a job's keys; from now on, if any is OK, this rank counts as copying until `done`."""
        self._seq += 1
        self._send(Resolve(self._seq, job.job, job.kind, job.grant, b"".join(job.keys), wait_ms))
        answer = self._receive(RESOLVE_SECONDS[job.kind])
        if not isinstance(answer, Resolved) or (answer.seq, answer.job) != (self._seq, job.job):
            raise Detached(Reason(REFUSED, f"worker answered the places of job {job.job} with {answer}"))
        columns = (answer.states, answer.slots, answer.generations, answer.offsets)
        if any(len(column) != len(job.keys) for column in columns):
            raise Detached(Reason(REFUSED, f"worker answered other places than job {job.job} has keys"))
        return [self._place(row, job, at) for at, row in enumerate(zip(*columns, strict=True))]

    def done(self, job: int, kind: CopyKind, states: list[CopyState], copied: int, seconds: float) -> None:
        """Say that nothing of this job is in flight any more."""
        message = StoreDone if kind == "store" else LoadDone
        self._send(message(job, bytes(states), copied, int(seconds * 1e6)))

    def cancel(self, job: CopyJob) -> None:
        """Give up a store that was never begun, so that its reserved slots are free at once."""
        places = self.resolve(job, wait_ms=0)
        if any(place.state is CopyState.OK for place in places):
            self.done(job.job, job.kind, [CopyState.CANCELLED] * len(job.keys), 0, 0.0)

    def look(self) -> None:
        """Without waiting: raise Detached when the worker is gone or says that it closes."""
        if hung_up(self._link.fileno()):
            raise Detached(Reason(NO_WORKER, "worker closed the session"))
        try:
            self._link.receive(0.0)
        except LinkTimeout:
            return
        except (LinkClosed, FrameRefused) as error:
            raise Detached(_reason_of(error)) from None
        raise Detached(Reason(NO_WORKER, "worker is closing"))

    def goodbye(self) -> None:
        """Tell the worker that nothing is in flight any more."""
        try:
            self._send(Bye())
        except Detached:
            return

    def close(self) -> None:
        """Close the socket."""
        self._link.close()

    def _place(self, row: tuple[int, int, int, int], job: CopyJob, at: int) -> Place:
        state, slot, generation, offset = row
        if state != CopyState.OK:
            return Place(_copy_state(state), 0, 0, 0)
        grant = self.groups[job.blocks[at].group]
        start = offset + self.rank * grant.area_stride
        if not (0 <= slot < self._slots and offset >= 0 and start + grant.area_bytes <= self._pool_bytes):
            raise Detached(Reason(REFUSED, f"worker named slot {slot} at {offset}, outside its pool"))
        return Place(CopyState.OK, slot, generation, start)

    def _send(self, message: Resolve | StoreDone | LoadDone | Bye) -> None:
        try:
            self._link.send(message, SEND_SECONDS)
        except LinkTimeout as error:
            raise Detached(Reason(TIMEOUT, str(error))) from None
        except (LinkClosed, FrameRefused) as error:
            raise Detached(_reason_of(error)) from None

    def _receive(self, timeout: float) -> ToEngine:
        try:
            message = self._link.receive(timeout)
        except LinkTimeout as error:
            raise Detached(Reason(TIMEOUT, str(error))) from None
        except (LinkClosed, FrameRefused) as error:
            raise Detached(_reason_of(error)) from None
        if isinstance(message, Closing):
            raise Detached(Reason(NO_WORKER, f"worker is closing: {message.reason}"))
        return message


def _copy_state(code: int) -> CopyState:
    try:
        return CopyState(code)
    except ValueError:
        raise Detached(Reason(REFUSED, f"worker answered the unknown copy state {code}")) from None


def _reason_of(error: LinkClosed | FrameRefused) -> Reason:
    return Reason(NO_WORKER if isinstance(error, LinkClosed) else REFUSED, str(error))
