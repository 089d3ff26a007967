"""One key kept in etcd under a lease: a worker's registration, or the leader's claim to the election key.
Owns when to register, renew, wait and give up; never knows what the key is for.

The key's create revision numbers its tenures: it stays while the same lease lives, also through an outage of
etcd, and is higher after each new registration. (It is a worker's incarnation, and the leader's epoch.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.common.etcd.client import EtcdClient
from blockyard.common.etcd.connection import backoffs
from blockyard.common.etcd.errors import EtcdError, EtcdUnavailable, LeaseGone
from blockyard.common.etcd.tenure import LeaseTerms, Tenure
from blockyard.common.etcd.txn import Compare, Delete, Field, Is, Put
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync

_RELEASE_TIMEOUT_S = 1.0
_RENEWALS_PER_TTL = 3


@dataclass(frozen=True, slots=True)
class Held:
    create_revision: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Someone else holds the key; we take it when it is gone."""

    holder: KeyValue


@dataclass(frozen=True, slots=True)
class NotHeld:
    reason: str


KeyState = Held | Waiting | NotHeld


class LeasedKey:
    """Run `run()` in a task group; ask `held(now)` before each act that needs the key.

    `alive` is asked before each registration and renewal: while it returns False the lease is left to expire,
    so that a process that makes no progress is not kept registered by its timer. `on_change` is called with
    each new state, on the loop. `take_over` removes the key of a predecessor once, before the first tenure (a
    restarted worker need not wait for its old lease); a process displaced so waits and never fights back.
    """

    def __init__(
        self,
        client: EtcdClient,
        key: str,
        value: bytes,
        *,
        terms: LeaseTerms,
        alive: Callable[[], bool],
        on_change: Callable[[KeyState], None],
        take_over: bool = False,
    ) -> None:
        self._client = client
        self._key = key
        self._value = value
        self._terms = terms
        self._alive = alive
        self._on_change = on_change
        self._may_take_over = take_over
        self._tenure: Tenure | None = None
        self._written: bytes | None = None
        self._state: KeyState = NotHeld("not started")
        self._is_held = asyncio.Event()
        self._value_changed = asyncio.Event()

    @property
    def state(self) -> KeyState:
        return self._state

    @property
    def create_revision(self) -> int | None:
        """That of the present tenure. Says nothing about whether it may still be relied on: see `held`."""
        return self._tenure.create_revision if self._tenure else None

    def held(self, now: float) -> bool:
        """Whether the key is certainly ours at `now` (time.monotonic()), even if etcd cannot be reached."""
        return self._tenure is not None and self._tenure.held(now)

    def is_ours(self, current: KeyValue | None) -> bool:
        """Whether an entry just read is the one of the present tenure: not one made later, nor in other data."""
        tenure = self._tenure
        if tenure is None or current is None:
            return False
        return (current.create_revision, current.lease) == (tenure.create_revision, tenure.lease)

    async def wait_held(self, timeout_s: float) -> int:
        """Wait for the key and return its create revision."""
        try:
            async with asyncio.timeout(timeout_s):
                while not isinstance(self._state, Held):
                    await self._is_held.wait()
                return self._state.create_revision
        except TimeoutError:
            raise EtcdUnavailable(
                f"etcd key {self._key}: not held within {timeout_s:g} s; it is {self._state}"
            ) from None

    def set_value(self, value: bytes) -> None:
        """Change what the key says, now if it is held, else with the next registration."""
        self._value = value
        self._value_changed.set()

    async def run(self) -> None:
        """Keep the key until cancelled, then give it up."""
        waits = backoffs()
        try:
            while True:
                await self._until_alive()
                try:
                    if await self._register():
                        waits = backoffs()
                        await self._keep()
                    else:
                        await self._until_free()
                except EtcdError as error:
                    self._report(NotHeld(str(error)))
                    await asyncio.sleep(next(waits))
        finally:
            await self._give_up(NotHeld("stopped"))

    async def _until_alive(self) -> None:
        while not self._alive():
            self._report(NotHeld("this process makes no progress"))
            await asyncio.sleep(self._terms.ttl_s / _RENEWALS_PER_TTL)

    async def _register(self) -> bool:
        """Try once to make the key; False if someone else has it."""
        current = await self._client.keys.get(self._key)
        if current is not None and not self._may_take_over:
            self._report(Waiting(current))
            return False
        if current is not None:
            seen = Compare(self._key, Field.MOD_REVISION, Is.EQUAL, current.mod_revision)
            await self._client.keys.txn([seen], [Delete(self._key)])
        value = self._value
        asked_at = time.monotonic()
        # If an answer is lost from here on, the lease is never renewed and takes the key with it.
        lease = await self._client.leases.grant(self._terms.ttl_s)
        won, current = await self._client.keys.create_if_absent(self._key, value, lease=lease.id)
        if not won:
            self._report(Waiting(current))
            await self._revoke(lease.id)
            return False
        self._tenure = Tenure.begun(current.create_revision, lease.id, lease.ttl_s, asked_at, self._terms.margin_s)
        self._written = value
        self._may_take_over = False
        self._report_tenure(self._tenure, "registration took longer than the lease")
        return True

    async def _keep(self) -> None:
        """Renew until the tenure is over."""
        waits = backoffs()
        trouble = ""
        while (tenure := self._tenure) is not None:
            pause = next(waits) if trouble else tenure.ttl_s / _RENEWALS_PER_TTL
            await self._pause(pause)
            if not self._alive():
                trouble = ""
                self._report_tenure(tenure, "this process makes no progress")
                continue
            try:
                self._tenure = tenure = await self._renew(tenure)
                trouble, waits = "", backoffs()
            except LeaseGone as error:
                await self._give_up(NotHeld(str(error)))
                return
            except EtcdError as error:
                trouble = str(error)
            self._report_tenure(tenure, trouble)

    async def _renew(self, tenure: Tenure) -> Tenure:
        """Renew the lease and see that the key is still under it: a key can go without its lease."""
        patience = tenure.ttl_s / _RENEWALS_PER_TTL
        asked_at = time.monotonic()
        lease = await self._client.leases.keep_alive(tenure.lease, timeout_s=patience)
        current = await self._client.keys.get(self._key, timeout_s=patience)
        if current is None:
            raise LeaseGone(f"etcd key {self._key}: deleted by someone else")
        if not self.is_ours(current):
            raise LeaseGone(f"etcd key {self._key}: taken over by {current}")
        if self._written != self._value:
            await self._write(tenure, patience)
        return tenure.renewed(lease.ttl_s, asked_at, self._terms.margin_s)

    async def _write(self, tenure: Tenure, timeout_s: float) -> None:
        value = self._value
        same = Compare(self._key, Field.CREATE_REVISION, Is.EQUAL, tenure.create_revision)
        result = await self._client.keys.txn([same], [Put(self._key, value, tenure.lease)], timeout_s=timeout_s)
        if not result.succeeded:
            raise LeaseGone(f"etcd key {self._key}: taken over before its new value was written")
        self._written = value

    async def _pause(self, seconds: float) -> None:
        """Sleep until the next renewal, or until the value has changed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._value_changed.wait()
        self._value_changed.clear()

    async def _until_free(self) -> None:
        async with self._client.watch(self._key) as events:
            async for event in events:
                match event:
                    case Resync(listing=listing):
                        if listing.first is None:
                            return
                        self._report(Waiting(listing.first))
                    case KeyPut(kv=kv):
                        self._report(Waiting(kv))
                    case KeyDeleted():
                        return

    async def _give_up(self, state: NotHeld) -> None:
        tenure, self._tenure = self._tenure, None
        self._report(state)
        if tenure is not None:
            await self._revoke(tenure.lease)

    async def _revoke(self, lease: int) -> None:
        """A courtesy to whoever waits: a lease that cannot be revoked expires by itself."""
        with contextlib.suppress(EtcdError):
            await self._client.leases.revoke(lease, timeout_s=_RELEASE_TIMEOUT_S)

    def _report_tenure(self, tenure: Tenure, trouble: str) -> None:
        if tenure.held(time.monotonic()):
            self._report(Held(tenure.create_revision))
        else:
            self._report(NotHeld(f"the lease margin is spent: {trouble}"))

    def _report(self, state: KeyState) -> None:
        if state == self._state:
            return
        self._state = state
        if isinstance(state, Held):
            self._is_held.set()
        else:
            self._is_held.clear()
        self._on_change(state)
