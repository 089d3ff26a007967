"""A key under a lease in virtual time. Owns carrying out what the production LeaseMachine says, as LeasedKey does it on
asyncio; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from blockyard.common.etcd import lease_steps as steps
from blockyard.common.etcd.errors import EtcdError
from blockyard.common.etcd.key_state import Held, KeyState
from blockyard.common.etcd.lease_machine import LeaseMachine
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.etcd.values import KeyValue
from sim.etcd_client import TIMEOUT, EtcdClient
from sim.process import Process
from sim.tasks import Signal


class SimLeasedKey:
    """Spawn `run`; ask `held` before each act that needs the key."""

    def __init__(
        self,
        client: EtcdClient,
        process: Process,
        key: str,
        value: bytes,
        terms: LeaseTerms,
        alive: Callable[[], bool],
        on_change: Callable[[KeyState], None],
        take_over: bool = False,
    ) -> None:
        self._client = client
        self._process = process
        self._key = key
        self._alive = alive
        self._on_change = on_change
        self._machine = LeaseMachine(key, value, terms, take_over=take_over)
        self._value_changed = Signal()

    @property
    def state(self) -> KeyState:
        return self._machine.state

    def held(self, now: float) -> bool:
        return self._machine.held(now)

    def confirms(self, state: Held, current: KeyValue | None, now: float) -> bool:
        return self._machine.confirms(state, current, now)

    def set_value(self, value: bytes) -> None:
        self._machine.value = value
        self._value_changed.set()

    async def run(self) -> None:
        """Until the process dies: nothing here is ever told to stop."""
        wanted = self._step(steps.Woke())
        while wanted is not None:
            if isinstance(wanted, steps.Watch):
                wanted = await self._follow(wanted)
            else:
                wanted = self._step(await self._do(wanted))

    def _step(self, event: steps.Event) -> steps.Wanted | None:
        wanted: steps.Wanted | None = None
        for instruction in self._machine.handle(self._process.clock.now, self._alive(), event):
            if isinstance(instruction, steps.Report):
                self._on_change(instruction.state)
            else:
                wanted = instruction
        return wanted

    async def _follow(self, begin: steps.Watch) -> steps.Wanted | None:
        watch = self._client.watch(self._key)
        try:
            wanted = self._step(await watch.next(begin.seconds) or steps.Woke())
            while isinstance(wanted, steps.Watch) and not wanted.afresh:
                wanted = self._step(await watch.next(wanted.seconds) or steps.Woke())
        finally:
            watch.close()
        return wanted

    async def _do(self, wanted: steps.Request | steps.Sleep | steps.Rest) -> steps.Event:
        match wanted:
            case steps.Sleep(seconds):
                await self._process.sleep(seconds)
                return steps.Woke()
            case steps.Rest(seconds):
                await self._value_changed.wait(self._process, seconds)
                return steps.Woke()
            case _:
                try:
                    return await self._ask(wanted)
                except EtcdError as error:
                    return steps.Failed(error)

    async def _ask(self, request: steps.Request) -> steps.Event:
        server, key, call = self._client.server, self._key, self._client.call
        match request:
            case steps.Get(timeout_s):
                return steps.Found(await call(lambda: server.get(key), timeout_s or TIMEOUT))
            case steps.Remove(mod_revision):
                await call(lambda: server.delete_if(key, mod_revision))
                return steps.Done()
            case steps.Grant(ttl_s):
                return steps.Granted(await call(lambda: server.grant(ttl_s)), ttl_s)
            case steps.KeepAlive(lease, timeout_s):
                return steps.Granted(lease, await call(lambda: server.keep_alive(lease), timeout_s))
            case steps.Create(value, lease):
                return steps.Made(*await call(lambda: server.create_if_absent(key, value, lease)))
            case steps.Put(revision, value, lease, timeout_s):
                return steps.Wrote(await call(lambda: server.put_if(key, revision, value, lease), timeout_s))
            case steps.Revoke(lease, timeout_s):
                await call(lambda: server.revoke(lease), timeout_s)
                return steps.Done()
