"""One key kept in etcd under a lease: a worker's registration, or the leader's claim to the election key.
Owns carrying out what the lease machine says, on asyncio; decides nothing, and never knows what the key is for.

The key's create revision numbers its tenures: it stays while the same lease lives, also through an outage of
etcd, and is higher after each new registration. (It is a worker's incarnation, and the leader's epoch.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from blockyard.common.etcd import lease_steps as steps
from blockyard.common.etcd.client import EtcdClient
from blockyard.common.etcd.errors import EtcdError, EtcdUnavailable
from blockyard.common.etcd.key_state import Held, KeyState
from blockyard.common.etcd.lease_machine import LeaseMachine
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.etcd.txn import Compare, Delete, Field, Is, Put
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import Watch


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
        self._alive = alive
        self._on_change = on_change
        self._machine = LeaseMachine(key, value, terms, take_over=take_over)
        self._is_held = asyncio.Event()
        self._value_changed = asyncio.Event()

    @property
    def state(self) -> KeyState:
        return self._machine.state

    @property
    def create_revision(self) -> int | None:
        """That of the present tenure. Says nothing about whether it may still be relied on: see `held`."""
        tenure = self._machine.tenure
        return tenure.create_revision if tenure else None

    def held(self, now: float) -> bool:
        """Whether the key is certainly ours at `now` (time.monotonic()), even if etcd cannot be reached."""
        return self._machine.held(now)

    def is_ours(self, current: KeyValue | None) -> bool:
        """Whether an entry just read is the one of the present tenure: not one made later, nor in other data."""
        return self._machine.is_ours(current)

    def confirms(self, state: Held, current: KeyValue | None, now: float) -> bool:
        """Whether the tenure of this state goes on by an entry just read, and may be relied on at `now`."""
        return self._machine.confirms(state, current, now)

    async def wait_held(self, timeout_s: float) -> int:
        """Wait for the key and return its create revision."""
        try:
            async with asyncio.timeout(timeout_s):
                while not isinstance(self.state, Held):
                    await self._is_held.wait()
                return self.state.create_revision
        except TimeoutError:
            raise EtcdUnavailable(
                f"etcd key {self._key}: not held within {timeout_s:g} s; it is {self.state}"
            ) from None

    def set_value(self, value: bytes) -> None:
        """Change what the key says, now if it is held, else with the next registration."""
        self._machine.value = value
        self._value_changed.set()

    async def run(self) -> None:
        """Keep the key until cancelled, then give it up."""
        wanted = self._step(steps.Woke())
        try:
            while wanted is not None:
                if isinstance(wanted, steps.Watch):
                    wanted = await self._follow(wanted)
                else:
                    wanted = self._step(await self._do(wanted))
        finally:
            last = self._step(steps.Stopped())
            if isinstance(last, steps.Revoke):
                await self._do(last)

    def _step(self, event: steps.Event) -> steps.Wanted | None:
        """Give the machine what came, pass its reports on, and return what it wants done next."""
        wanted: steps.Wanted | None = None
        for instruction in self._machine.handle(time.monotonic(), self._alive(), event):
            if isinstance(instruction, steps.Report):
                self._tell(instruction.state)
            else:
                wanted = instruction
        return wanted

    def _tell(self, state: KeyState) -> None:
        if isinstance(state, Held):
            self._is_held.set()
        else:
            self._is_held.clear()
        self._on_change(state)

    async def _follow(self, begin: steps.Watch) -> steps.Wanted | None:
        """Keep one watch for as long as the machine wants to hear from it."""
        async with self._client.watch(self._key) as watch:
            wanted = self._step(await self._next(watch, begin.seconds))
            while isinstance(wanted, steps.Watch) and not wanted.afresh:
                wanted = self._step(await self._next(watch, wanted.seconds))
        return wanted

    async def _next(self, watch: Watch, seconds: float) -> steps.Event:
        try:
            async with asyncio.timeout(seconds):
                return await anext(watch)
        except TimeoutError:
            return steps.Woke()
        except EtcdError as error:
            return steps.Failed(error)

    async def _do(self, wanted: steps.Request | steps.Sleep | steps.Rest) -> steps.Event:
        try:
            match wanted:
                case steps.Sleep(seconds):
                    await asyncio.sleep(seconds)
                    return steps.Woke()
                case steps.Rest(seconds):
                    return await self._rest(seconds)
                case _:
                    return await self._ask(wanted)
        except EtcdError as error:
            return steps.Failed(error)

    async def _rest(self, seconds: float) -> steps.Woke:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._value_changed.wait()
        self._value_changed.clear()
        return steps.Woke()

    async def _ask(self, request: steps.Request) -> steps.Event:
        keys, leases = self._client.keys, self._client.leases
        match request:
            case steps.Get(timeout_s):
                return steps.Found(await keys.get(self._key, timeout_s=timeout_s))
            case steps.Remove(mod_revision):
                unchanged = Compare(self._key, Field.MOD_REVISION, Is.EQUAL, mod_revision)
                await keys.txn([unchanged], [Delete(self._key)])
                return steps.Done()
            case steps.Grant(ttl_s):
                lease = await leases.grant(ttl_s)
                return steps.Granted(lease.id, lease.ttl_s)
            case steps.KeepAlive(number, timeout_s):
                lease = await leases.keep_alive(number, timeout_s=timeout_s)
                return steps.Granted(lease.id, lease.ttl_s)
            case steps.Create(value, number):
                return steps.Made(*await keys.create_if_absent(self._key, value, lease=number))
            case steps.Put(create_revision, value, number, timeout_s):
                ours = Compare(self._key, Field.CREATE_REVISION, Is.EQUAL, create_revision)
                result = await keys.txn([ours], [Put(self._key, value, number)], timeout_s=timeout_s)
                return steps.Wrote(result.succeeded)
            case steps.Revoke(number, timeout_s):
                await leases.revoke(number, timeout_s=timeout_s)
                return steps.Done()
