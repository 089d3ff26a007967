"""A key under a lease, step for step as production's LeasedKey does it, in virtual time. The arithmetic of the safety
margin is the production Tenure.
"""

from __future__ import annotations

from collections.abc import Callable

from blockyard.common.etcd.errors import EtcdError, LeaseGone
from blockyard.common.etcd.leased_key import Held, KeyState, NotHeld, Waiting
from blockyard.common.etcd.tenure import LeaseTerms, Tenure
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync
from sim.etcd_client import EtcdClient, backoffs
from sim.process import Process

_RENEWALS_PER_TTL = 3


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
        self._server = client.server
        self._process = process
        self._key = key
        self._value = value
        self._terms = terms
        self._alive = alive
        self._on_change = on_change
        self._may_take_over = take_over
        self._tenure: Tenure | None = None
        self._written: bytes | None = None
        self.state: KeyState = NotHeld("not started")

    def held(self, now: float) -> bool:
        return self._tenure is not None and self._tenure.held(now)

    def is_ours(self, current: KeyValue | None) -> bool:
        tenure = self._tenure
        if tenure is None or current is None:
            return False
        return (current.create_revision, current.lease) == (tenure.create_revision, tenure.lease)

    def set_value(self, value: bytes) -> None:
        """Written with the next renewal."""
        self._value = value

    async def run(self) -> None:
        waits = backoffs()
        while True:
            while not self._alive():
                self._report(NotHeld("this process makes no progress"))
                await self._process.sleep(self._terms.ttl_s / _RENEWALS_PER_TTL)
            try:
                if await self._register():
                    waits = backoffs()
                    await self._keep()
                else:
                    await self._until_free()
            except EtcdError as error:
                self._report(NotHeld(str(error)))
                await self._process.sleep(next(waits))

    @property
    def _now(self) -> float:
        return self._process.clock.now

    async def _register(self) -> bool:
        server, key = self._server, self._key
        current: KeyValue | None = await self._client.call(lambda: server.get(key))
        if current is not None and not self._may_take_over:
            self._report(Waiting(current))
            return False
        if current is not None:
            seen = current.mod_revision
            await self._client.call(lambda: server.delete_if(key, seen))
        value, asked_at, ttl = self._value, self._now, self._terms.ttl_s
        lease: int = await self._client.call(lambda: server.grant(ttl))
        won, current = await self._client.call(lambda: server.create_if_absent(key, value, lease))
        assert current is not None
        if not won:
            self._report(Waiting(current))
            await self._revoke(lease)
            return False
        self._tenure = Tenure.begun(current.create_revision, lease, ttl, asked_at, self._terms.margin_s)
        self._written = value
        self._may_take_over = False
        self._report_tenure(self._tenure, "registration took longer than the lease")
        return True

    async def _keep(self) -> None:
        waits = backoffs()
        trouble = ""
        while (tenure := self._tenure) is not None:
            await self._process.sleep(next(waits) if trouble else tenure.ttl_s / _RENEWALS_PER_TTL)
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
        server, key, asked_at = self._server, self._key, self._now
        patience = tenure.ttl_s / _RENEWALS_PER_TTL
        ttl: int = await self._client.call(lambda: server.keep_alive(tenure.lease), patience)
        current: KeyValue | None = await self._client.call(lambda: server.get(key), patience)
        if current is None:
            raise LeaseGone("deleted by someone else")
        if not self.is_ours(current):
            raise LeaseGone("taken over")
        if self._written != self._value:
            value = self._value
            revision = tenure.create_revision
            if not await self._client.call(lambda: server.put_if(key, revision, value, tenure.lease), patience):
                raise LeaseGone("taken over before its new value was written")
            self._written = value
        return tenure.renewed(ttl, asked_at, self._terms.margin_s)

    async def _until_free(self) -> None:
        watch = self._client.watch(self._key)
        try:
            while True:
                match await watch.next(60.0):
                    case Resync(listing=listing):
                        if listing.first is None:
                            return
                        self._report(Waiting(listing.first))
                    case KeyPut(kv=kv):
                        self._report(Waiting(kv))
                    case KeyDeleted():
                        return
        finally:
            watch.close()

    async def _give_up(self, state: NotHeld) -> None:
        tenure, self._tenure = self._tenure, None
        self._report(state)
        if tenure is not None:
            await self._revoke(tenure.lease)

    async def _revoke(self, lease: int) -> None:
        try:
            await self._client.call(lambda: self._server.revoke(lease), 1.0)
        except EtcdError:
            return

    def _report_tenure(self, tenure: Tenure, trouble: str) -> None:
        if tenure.held(self._now):
            self._report(Held(tenure.create_revision))
        else:
            self._report(NotHeld(f"the lease margin is spent: {trouble}"))

    def _report(self, state: KeyState) -> None:
        if state != self.state:
            self.state = state
            self._on_change(state)
