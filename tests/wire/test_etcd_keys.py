"""Keys, transactions and leases against a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from blockyard.common.etcd import (
    Compare,
    Delete,
    EtcdClient,
    EtcdRefused,
    Field,
    Get,
    Is,
    LeaseGone,
    Listing,
    Put,
    Removed,
    Written,
)
from support.etcd_server import EtcdServer


@pytest.fixture
async def client(etcd: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(etcd.endpoint) as client:
        yield client
        await client.keys.delete("t/", prefix=True)


async def test_a_key_is_absent_then_written_then_overwritten_then_deleted(client: EtcdClient) -> None:
    assert await client.keys.get("t/a") is None
    first = await client.keys.put("t/a", b"1")
    second = await client.keys.put("t/a", b"2")
    kv = await client.keys.get("t/a")
    assert kv is not None
    assert (kv.key, kv.value, kv.version, kv.lease) == ("t/a", b"2", 2, 0)
    assert (kv.create_revision, kv.mod_revision) == (first.revision, second.revision)
    assert (await client.keys.delete("t/a")).count == 1
    assert (await client.keys.delete("t/a")).count == 0
    assert await client.keys.get("t/a") is None


async def test_a_listing_holds_the_prefix_alone_in_order_and_its_revision(client: EtcdClient) -> None:
    for key in ("t/w/b", "t/w/a", "t/w0", "t/v/z"):
        last = await client.keys.put(key, key.encode())
    listing = await client.keys.list("t/w/")
    assert [kv.key for kv in listing.kvs] == ["t/w/a", "t/w/b"]
    assert listing.revision == last.revision
    assert (await client.keys.list("t/none/")).kvs == ()


async def test_a_key_that_is_not_utf8_survives_being_read_and_deleted(client: EtcdClient, etcd: EtcdServer) -> None:
    odd = b"t/\xff\xfe".decode("utf-8", "surrogateescape")
    await client.keys.put(odd, b"x")
    assert [kv.key for kv in (await client.keys.list("t/")).kvs] == [odd]
    assert (await client.keys.delete(odd)).count == 1


async def test_an_empty_key_is_refused_here(client: EtcdClient) -> None:
    with pytest.raises(ValueError, match="at least one character"):
        await client.keys.list("")


async def test_a_transaction_runs_one_branch_and_returns_its_results(client: EtcdClient) -> None:
    await client.keys.put("t/old", b"o")
    absent = Compare("t/new", Field.CREATE_REVISION, Is.EQUAL, 0)
    operations: list[Put | Delete | Get] = [Put("t/new", b"n"), Delete("t/old"), Get("t/", prefix=True)]

    won = await client.keys.txn([absent], operations, [Get("t/new")])
    assert won.succeeded
    written, removed, listing = won.results
    assert written == Written(won.revision)
    assert removed == Removed(won.revision, 1)
    assert isinstance(listing, Listing)
    assert [kv.key for kv in listing.kvs] == ["t/new"]

    lost = await client.keys.txn([absent], operations, [Get("t/new")])
    assert not lost.succeeded
    assert isinstance(lost.results[0], Listing)
    assert lost.results[0].first == await client.keys.get("t/new")


@pytest.mark.parametrize("field", list(Field))
async def test_each_number_of_a_key_can_be_compared(client: EtcdClient, field: Field) -> None:
    await client.keys.put("t/c", b"1")
    await client.keys.put("t/c", b"2")
    kv = await client.keys.get("t/c")
    assert kv is not None
    number: int = getattr(kv, field.value)

    async def holds(relation: Is, other: int) -> bool:
        return (await client.keys.txn([Compare("t/c", field, relation, other)], [])).succeeded

    assert await holds(Is.EQUAL, number)
    assert not await holds(Is.EQUAL, number - 1)
    assert await holds(Is.NOT_EQUAL, number - 1)
    assert await holds(Is.GREATER, number - 1)
    assert await holds(Is.LESS, number + 1)


async def test_of_many_who_create_a_key_one_wins_and_all_see_the_winner(client: EtcdClient) -> None:
    answers = await asyncio.gather(*(client.keys.create_if_absent("t/race", str(i).encode()) for i in range(20)))
    winners = [kv for won, kv in answers if won]
    assert len(winners) == 1
    assert {kv for _, kv in answers} == set(winners)
    assert winners[0] == await client.keys.get("t/race")


async def test_a_created_key_carries_its_lease(client: EtcdClient) -> None:
    lease = await client.leases.grant(30)
    won, kv = await client.keys.create_if_absent("t/leased", b"v", lease=lease.id)
    assert won
    assert kv == await client.keys.get("t/leased")
    assert kv.lease == lease.id
    await client.leases.revoke(lease.id)
    assert await client.keys.get("t/leased") is None


async def test_a_lease_that_nobody_renews_takes_its_keys_with_it(client: EtcdClient) -> None:
    renewed, left_alone = await client.leases.grant(1), await client.leases.grant(1)
    await client.keys.put("t/renewed", b"", lease=renewed.id)
    await client.keys.put("t/left", b"", lease=left_alone.id)
    async with asyncio.timeout(15):
        while await client.keys.get("t/left") is not None:
            assert (await client.leases.keep_alive(renewed.id)).ttl_s >= 1
            await asyncio.sleep(0.1)
    assert await client.keys.get("t/renewed") is not None


async def test_what_is_under_a_lost_lease_cannot_be_renewed_or_written(client: EtcdClient) -> None:
    lease = await client.leases.grant(30)
    await client.leases.revoke(lease.id)
    await client.leases.revoke(lease.id)
    with pytest.raises(LeaseGone, match=f"{lease.id:x}"):
        await client.leases.keep_alive(lease.id)
    with pytest.raises(LeaseGone, match="lease not found"):
        await client.keys.put("t/x", b"", lease=lease.id)


async def test_a_request_that_etcd_refuses_says_what_etcd_said(client: EtcdClient) -> None:
    with pytest.raises(EtcdRefused, match="duplicate key"):
        await client.keys.txn([], [Put("t/d", b"1"), Put("t/d", b"2")])
