"""Every decision about one key kept under a lease: when to register, renew, wait and give up.

    handle(now, alive, event) -> list[Instruction]     a report if the state changed, then at most one thing to do

The outcome of that thing is the next event. Owns the key's state and tenure. Must never know a clock, asyncio, or
how etcd is asked: LeasedKey carries the instructions out in a process, the simulator in virtual time.
"""

from __future__ import annotations

from enum import Enum

from blockyard.common.etcd import lease_steps as steps
from blockyard.common.etcd.backoff import backoffs
from blockyard.common.etcd.errors import EtcdError, LeaseGone
from blockyard.common.etcd.key_state import Held, KeyState, NotHeld, Waiting
from blockyard.common.etcd.tenure import LeaseTerms, Tenure
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync

_RELEASE_TIMEOUT_S = 1.0
_RENEWALS_PER_TTL = 3


class Phase(Enum):
    """What the machine waits for."""

    IDLE = "the time to try"
    LOOKING = "the key, to see whether it is free"
    CLEARING = "the removal of a predecessor's key"
    GRANTING = "a lease"
    CREATING = "the key to be made"
    STANDING_BY = "news of another's key"
    RESTING = "the time to renew"
    RENEWING = "the lease to be renewed"
    CHECKING = "the key, to see that it is still ours"
    WRITING = "a new value to be written"
    RETURNING = "a lease to be given back"
    STOPPED = "nothing"


class LeaseMachine:
    """Begin with `Woke`, end with `Stopped`. `alive` says, at each step, whether the process makes progress: one
    that does not is neither registered nor renewed.

    `take_over` lets the first look remove the key of a predecessor; who had to wait once never removes one.
    """

    def __init__(self, key: str, value: bytes, terms: LeaseTerms, *, take_over: bool = False) -> None:
        self.key = key
        self.value = value
        """What the key shall say; may be set at any time."""
        self.state: KeyState = NotHeld("not started")
        self.tenure: Tenure | None = None
        self._terms = terms
        self._may_take_over = take_over
        self._phase = Phase.IDLE
        self._now = 0.0
        self._alive = False
        self._out: list[steps.Instruction] = []
        self._lease = steps.Granted(0, 0)
        """As last granted or renewed, on its way to count."""
        self._asked_at = 0.0
        """When that was asked for."""
        self._sent = b""
        """The value that was last sent."""
        self._written = b""
        """The value that etcd has from us."""
        self._trouble = ""
        """Why the last renewal failed."""
        self._waits = backoffs()
        self._stale_at: float | None = None
        """When the present watch has been relied on for long enough; None before it has listed the key."""

    def held(self, now: float) -> bool:
        """Whether the key is certainly ours at `now`, by the local clock alone."""
        return self.tenure is not None and self.tenure.held(now)

    def is_ours(self, entry: KeyValue | None) -> bool:
        """Whether an entry just read is the one of the present tenure: not one made later, nor in other data."""
        if self.tenure is None or entry is None:
            return False
        return (entry.create_revision, entry.lease) == (self.tenure.create_revision, self.tenure.lease)

    def confirms(self, state: Held, current: KeyValue | None, now: float) -> bool:
        """Whether the tenure of this state goes on by an entry just read, and may be relied on at `now`."""
        return state == self.state and self.is_ours(current) and self.held(now)

    def handle(self, now: float, alive: bool, event: steps.Event) -> list[steps.Instruction]:
        """One step. RuntimeError for an event that answers nothing that was asked."""
        self._now, self._alive = now, alive
        self._step(event)
        out, self._out = self._out, []
        return out

    def _step(self, event: steps.Event) -> None:
        match self._phase, event:
            case _, steps.Stopped():
                self._stop()
            case (Phase.IDLE, steps.Woke()) | (Phase.RETURNING, steps.Done() | steps.Failed()):
                self._try()
            case Phase.LOOKING, steps.Found(entry):
                self._looked(entry)
            case Phase.CLEARING, steps.Done():
                self._ask_lease()
            case Phase.GRANTING, steps.Granted():
                self._create(event)
            case Phase.CREATING, steps.Made(True, entry):
                self._begin_tenure(entry)
            case Phase.CREATING, steps.Made(False, entry):
                self._outrun(entry)
            case Phase.STANDING_BY, Resync(listing=listing):
                self._listed(listing.first)
            case Phase.STANDING_BY, KeyPut(kv=entry):
                self._follow(entry)
            case Phase.STANDING_BY, KeyDeleted():
                self._try()
            case Phase.STANDING_BY, steps.Woke():
                self._watch_on()
            case Phase.RESTING, steps.Woke():
                self._renew()
            case Phase.RENEWING, steps.Granted():
                self._renewed(event)
            case Phase.CHECKING, steps.Found(entry):
                self._checked(entry)
            case Phase.WRITING, steps.Wrote(done):
                self._wrote(done)
            case _, steps.Failed(error):
                self._failed(error)
            case _:
                raise self._unasked(event)

    def _failed(self, error: EtcdError) -> None:
        match self._phase:
            case Phase.LOOKING | Phase.CLEARING | Phase.GRANTING | Phase.CREATING | Phase.STANDING_BY:
                self._not_registered(error)
            case Phase.RENEWING | Phase.CHECKING | Phase.WRITING:
                self._not_renewed(error)
            case _:
                raise self._unasked(steps.Failed(error))

    def _unasked(self, event: steps.Event) -> RuntimeError:
        return RuntimeError(f"etcd key {self.key}: waits for {self._phase.value}, not for {event}")

    # -- registering -------------------------------------------------------------------------------

    def _try(self) -> None:
        if self._alive:
            self._ask(Phase.LOOKING, steps.Get())
        else:
            self._report(NotHeld("this process makes no progress"))
            self._ask(Phase.IDLE, steps.Sleep(self._terms.ttl_s / _RENEWALS_PER_TTL))

    def _looked(self, entry: KeyValue | None) -> None:
        if entry is None:
            self._ask_lease()
        elif self._may_take_over:
            self._ask(Phase.CLEARING, steps.Remove(entry.mod_revision))
        else:
            self._report(Waiting(entry))
            self._watch()

    def _ask_lease(self) -> None:
        self._asked_at = self._now
        self._ask(Phase.GRANTING, steps.Grant(self._terms.ttl_s))

    def _create(self, granted: steps.Granted) -> None:
        """If an answer is lost from here on, the lease is never renewed and takes the key with it."""
        self._lease, self._sent = granted, self.value
        self._ask(Phase.CREATING, steps.Create(self._sent, granted.lease))

    def _begin_tenure(self, entry: KeyValue) -> None:
        lease, ttl_s = self._lease.lease, self._lease.ttl_s
        self.tenure = Tenure.begun(entry.create_revision, lease, ttl_s, self._asked_at, self._terms.margin_s)
        self._written = self._sent
        self._may_take_over = False
        self._waits = backoffs()
        self._rest(self.tenure, "registration took longer than the lease")

    def _outrun(self, entry: KeyValue) -> None:
        """Someone else made the key first."""
        self._may_take_over = False
        self._report(Waiting(entry))
        self._give_back(self._lease.lease)

    def _not_registered(self, error: EtcdError) -> None:
        self._report(NotHeld(str(error)))
        self._ask(Phase.IDLE, steps.Sleep(next(self._waits)))

    # -- standing by -------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._may_take_over = False
        self._stale_at = None
        self._ask(Phase.STANDING_BY, steps.Watch(self._terms.ttl_s, afresh=True))

    def _listed(self, holder: KeyValue | None) -> None:
        self._stale_at = self._now + self._terms.ttl_s
        if holder is None:
            self._try()
        else:
            self._follow(holder)

    def _follow(self, holder: KeyValue) -> None:
        self._report(Waiting(holder))
        self._watch_on()

    def _watch_on(self) -> None:
        """A watch misses that etcd was wiped if revisions caught up unseen, so each TTL a new one lists afresh.

        One that has not listed yet is on its way round the endpoints: to begin again would keep it from arriving.
        """
        stale_at = self._now + self._terms.ttl_s if self._stale_at is None else self._stale_at
        if self._now < stale_at:
            self._ask(Phase.STANDING_BY, steps.Watch(stale_at - self._now))
        else:
            self._watch()

    # -- the tenure --------------------------------------------------------------------------------

    def _rest(self, tenure: Tenure, trouble: str = "") -> None:
        """Say how the tenure stands, and wait for the next renewal."""
        if tenure.held(self._now):
            self._report(Held(tenure.create_revision))
        else:
            self._report(NotHeld(f"the lease margin is spent: {trouble}"))
        self._ask(Phase.RESTING, steps.Rest(next(self._waits) if self._trouble else tenure.ttl_s / _RENEWALS_PER_TTL))

    def _renew(self) -> None:
        tenure = self._present()
        if self._alive:
            self._asked_at = self._now
            self._ask(Phase.RENEWING, steps.KeepAlive(tenure.lease, _patience(tenure)))
        else:
            self._trouble = ""
            self._rest(tenure, "this process makes no progress")

    def _renewed(self, granted: steps.Granted) -> None:
        """The lease lives; see that the key is still under it: a key can go without its lease."""
        self._lease = granted
        self._ask(Phase.CHECKING, steps.Get(_patience(self._present())))

    def _checked(self, entry: KeyValue | None) -> None:
        tenure = self._present()
        if entry is None:
            self._lose(f"etcd key {self.key}: deleted by someone else")
        elif not self.is_ours(entry):
            self._lose(f"etcd key {self.key}: taken over by {entry}")
        elif self._written != self.value:
            self._sent = self.value
            self._ask(Phase.WRITING, steps.Put(tenure.create_revision, self._sent, tenure.lease, _patience(tenure)))
        else:
            self._go_on(tenure)

    def _wrote(self, done: bool) -> None:
        if done:
            self._written = self._sent
            self._go_on(self._present())
        else:
            self._lose(f"etcd key {self.key}: taken over before its new value was written")

    def _go_on(self, tenure: Tenure) -> None:
        self.tenure = tenure.renewed(self._lease.ttl_s, self._asked_at, self._terms.margin_s)
        self._trouble, self._waits = "", backoffs()
        self._rest(self.tenure)

    def _not_renewed(self, error: EtcdError) -> None:
        if isinstance(error, LeaseGone):
            self._lose(str(error))
        else:
            self._trouble = str(error)
            self._rest(self._present(), self._trouble)

    def _lose(self, reason: str) -> None:
        tenure = self._present()
        self.tenure = None
        self._trouble, self._waits = "", backoffs()
        self._report(NotHeld(reason))
        self._give_back(tenure.lease)

    def _present(self) -> Tenure:
        if self.tenure is None:
            raise RuntimeError(f"etcd key {self.key}: waits for {self._phase.value} without a tenure")
        return self.tenure

    # -- the end -----------------------------------------------------------------------------------

    def _stop(self) -> None:
        tenure, self.tenure = self.tenure, None
        self._phase = Phase.STOPPED
        self._report(NotHeld("stopped"))
        if tenure is not None:
            self._ask(Phase.STOPPED, steps.Revoke(tenure.lease, _RELEASE_TIMEOUT_S))

    def _give_back(self, lease: int) -> None:
        """A courtesy to whoever waits: a lease that cannot be revoked expires by itself."""
        self._ask(Phase.RETURNING, steps.Revoke(lease, _RELEASE_TIMEOUT_S))

    def _report(self, state: KeyState) -> None:
        if state != self.state:
            self.state = state
            self._out.append(steps.Report(state))

    def _ask(self, phase: Phase, instruction: steps.Instruction) -> None:
        self._phase = phase
        self._out.append(instruction)


def _patience(tenure: Tenure) -> float:
    """How long one request of a renewal may take."""
    return tenure.ttl_s / _RENEWALS_PER_TTL
