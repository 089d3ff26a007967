"""A leased key on a real etcd: registered, renewed, lost, registered again, handed over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from blockyard.common.errors import ConfigError
from blockyard.common.etcd import EtcdClient, Held, KeyState, LeasedKey, LeaseTerms, NotHeld, Waiting
from blockyard.common.etcd.tenure import Tenure
from support.etcd_server import EtcdServer
from support.polling import PATIENCE_S, until

_SHORT = LeaseTerms(ttl_s=1, margin_s=0.2)
_LONG = LeaseTerms(ttl_s=3, margin_s=0.5)


@pytest.fixture
async def client(etcd: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(etcd.endpoint, timeout_s=2) as client:
        yield client
        await client.keys.delete("k", prefix=True)


class Member:
    """A leased key with its owner: a switch for its liveness and a record of its states."""

    def __init__(self, client: EtcdClient, value: bytes, terms: LeaseTerms = _LONG, *, take_over: bool = False) -> None:
        self.alive = True
        self.states: list[KeyState] = []
        self.key = LeasedKey(
            client,
            "k",
            value,
            terms=terms,
            alive=lambda: self.alive,
            on_change=self.states.append,
            take_over=take_over,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Member]:
        task = asyncio.create_task(self.key.run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def held(self) -> int:
        return await self.key.wait_held(PATIENCE_S)

    async def seen(self, kind: type[KeyState]) -> None:
        await until(lambda: isinstance(self.key.state, kind))


async def is_absent(client: EtcdClient) -> bool:
    return await client.keys.get("k") is None


async def says(client: EtcdClient, value: bytes) -> bool:
    kv = await client.keys.get("k")
    return kv is not None and kv.value == value


async def test_a_key_is_held_past_its_ttl_and_given_up_at_the_end(client: EtcdClient) -> None:
    async with Member(client, b"v", _SHORT).running() as member:
        revision = await member.held()
        kv = await client.keys.get("k")
        assert kv is not None
        assert (kv.value, kv.create_revision) == (b"v", revision)
        await asyncio.sleep(2.5 * _SHORT.ttl_s)
        assert await client.keys.get("k") == kv
        assert member.key.create_revision == revision
    assert await client.keys.get("k") is None
    assert not member.key.held(time.monotonic())
    assert member.states[-1] == NotHeld("stopped")


async def test_a_lease_revoked_from_outside_leads_to_a_higher_incarnation(client: EtcdClient) -> None:
    async with Member(client, b"v").running() as member:
        first = await member.held()
        kv = await client.keys.get("k")
        assert kv is not None
        await client.leases.revoke(kv.lease)
        await until(lambda: (member.key.create_revision or 0) > first)
        second = await member.held()
        again = await client.keys.get("k")
        assert again is not None
        assert again.create_revision == second > first
        assert again.value == b"v"
    assert [type(state) for state in member.states[:3]] == [Held, NotHeld, Held]


async def test_a_key_deleted_while_its_lease_lives_is_registered_again(client: EtcdClient) -> None:
    async with Member(client, b"v").running() as member:
        first = await member.held()
        await client.keys.delete("k")
        await until(lambda: (member.key.create_revision or 0) > first)


async def test_who_makes_no_progress_is_not_kept_registered(client: EtcdClient) -> None:
    async with Member(client, b"v", _SHORT).running() as member:
        first = await member.held()
        member.alive = False
        await member.seen(NotHeld)
        assert not member.key.held(time.monotonic())
        await until(lambda: is_absent(client))
        member.alive = True
        await until(lambda: (member.key.create_revision or 0) > first)


async def test_who_never_was_alive_is_never_registered(client: EtcdClient) -> None:
    member = Member(client, b"v", _SHORT)
    member.alive = False
    async with member.running():
        await member.seen(NotHeld)
        await asyncio.sleep(0.5)
        assert await client.keys.get("k") is None


async def test_the_second_candidate_waits_and_follows_the_first(client: EtcdClient) -> None:
    async with Member(client, b"second").running() as second, Member(client, b"first").running() as first:
        # Whoever came first, the other sees it and waits.
        await until(lambda: Waiting in {type(first.key.state), type(second.key.state)})
        await until(lambda: Held in {type(first.key.state), type(second.key.state)})
        holder, other = (first, second) if isinstance(first.key.state, Held) else (second, first)
        assert isinstance(other.key.state, Waiting)
        assert not other.key.held(time.monotonic())
        earlier = await holder.held()
        kv = await client.keys.get("k")
        assert kv is not None
        assert other.key.state.holder.create_revision == kv.create_revision == earlier
        await client.leases.revoke(kv.lease)
        await other.held()
        later = other.key.create_revision
        assert later is not None
        assert later > earlier


async def test_a_restarted_owner_takes_over_and_the_displaced_one_does_not_fight_back(
    client: EtcdClient,
) -> None:
    async with Member(client, b"old", take_over=True).running() as old:
        before = await old.held()
        async with Member(client, b"new", take_over=True).running() as new:
            after = await new.held()
            assert after > before
            await old.seen(Waiting)
            await asyncio.sleep(_LONG.ttl_s)
            kv = await client.keys.get("k")
            assert kv is not None
            assert (kv.value, kv.create_revision) == (b"new", after)


async def test_a_new_value_is_written_under_the_same_incarnation(client: EtcdClient) -> None:
    async with Member(client, b"old").running() as member:
        revision = await member.held()
        member.key.set_value(b"new")
        await until(lambda: says(client, b"new"))
        kv = await client.keys.get("k")
        assert kv is not None
        assert kv.create_revision == revision
        await client.leases.revoke(kv.lease)
        await until(lambda: (member.key.create_revision or 0) > revision)
        again = await client.keys.get("k")
        assert again is not None
        assert again.value == b"new"


async def test_a_hung_etcd_ends_the_holding_by_the_local_clock_alone(client: EtcdClient, etcd: EtcdServer) -> None:
    async with Member(client, b"v").running() as member:
        await member.held()
        etcd.freeze()
        try:
            await member.seen(NotHeld)
            assert not member.key.held(time.monotonic())
        finally:
            etcd.thaw()
        await member.held()


async def test_a_restarted_etcd_leaves_the_key_held_or_held_anew() -> None:
    terms = LeaseTerms(ttl_s=2, margin_s=0.3)
    with EtcdServer() as etcd:
        async with (
            EtcdClient(etcd.endpoint, timeout_s=2) as client,
            Member(client, b"v", terms).running() as member,
        ):
            before = await member.held()
            etcd.kill()
            await member.seen(NotHeld)
            await asyncio.to_thread(etcd.start)
            assert await member.held() >= before
            kv = await client.keys.get("k", timeout_s=PATIENCE_S)
            assert kv is not None
            assert kv.create_revision == member.key.create_revision


def test_terms_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="TTL is 0 s"):
        LeaseTerms(ttl_s=0, margin_s=0.1)
    with pytest.raises(ConfigError, match=r"margin is 2\.5 s at a TTL of 3 s"):
        LeaseTerms(ttl_s=3, margin_s=2.5)
    with pytest.raises(ConfigError, match="margin is 0 s"):
        LeaseTerms(ttl_s=3, margin_s=0)


def test_a_tenure_counts_from_when_it_was_asked_for() -> None:
    tenure = Tenure.begun(create_revision=7, lease=1, ttl_s=10, asked_at=100.0, margin_s=2.0)
    assert tenure.held(107.9)
    assert not tenure.held(108.0)
    renewed = tenure.renewed(ttl_s=10, asked_at=105.0, margin_s=2.0)
    assert renewed.held(112.9)
    assert not renewed.held(113.0)
    assert renewed.create_revision == 7
