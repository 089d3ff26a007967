"""Watches on a real etcd: once, in order, through restarts, and honest where that is impossible."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from blockyard.common.etcd import (
    EtcdClient,
    KeyDeleted,
    KeyPut,
    Resync,
    ResyncReason,
    Watch,
    WatchEvent,
)
from support.etcd_server import EtcdServer
from support.polling import PATIENCE_S, until
from support.tcp_forwarder import Forwarder


@pytest.fixture(scope="module")
def shared() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


async def take(events: Watch, count: int) -> list[WatchEvent]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(events) for _ in range(count)]


async def started(events: Watch) -> None:
    """Take the first listing and wait until a stream stands."""
    await take(events, 1)
    await until(lambda: events.broken_since is None)


async def until_broken(events: Watch) -> None:
    await until(lambda: events.broken_since is not None)


@contextlib.asynccontextmanager
async def behind_forwarder(
    etcd: EtcdServer, prefix: str, *more_endpoints: str
) -> AsyncIterator[tuple[Forwarder, EtcdClient, Watch]]:
    """A standing watch whose way to etcd can be cut, and another client whose way stays open."""
    async with (
        Forwarder(etcd.endpoint) as forwarder,
        EtcdClient(etcd.endpoint) as writer,
        EtcdClient([forwarder.endpoint, *more_endpoints]) as client,
        client.watch(prefix, prefix=True) as events,
    ):
        await started(events)
        yield forwarder, writer, events


def values(events: list[WatchEvent]) -> list[bytes]:
    assert all(isinstance(event, KeyPut) for event in events), events
    return [event.kv.value for event in events if isinstance(event, KeyPut)]


async def test_a_watch_begins_with_what_is_there_and_goes_on_with_each_change(shared: EtcdServer) -> None:
    async with EtcdClient(shared.endpoint) as client:
        await client.keys.put("a/1", b"before")
        async with client.watch("a/", prefix=True) as events:
            [start] = await take(events, 1)
            assert isinstance(start, Resync)
            assert start.reason is ResyncReason.START
            assert [kv.value for kv in start.listing.kvs] == [b"before"]
            await client.keys.put("b/other", b"")
            await client.keys.put("a/2", b"new")
            removed = await client.keys.delete("a/", prefix=True)
            put, *deleted = await take(events, 3)
            assert values([put]) == [b"new"]
            assert deleted == [KeyDeleted("a/1", removed.revision), KeyDeleted("a/2", removed.revision)]


async def test_a_watch_on_a_key_from_a_revision_replays_that_key_alone(shared: EtcdServer) -> None:
    async with EtcdClient(shared.endpoint) as client:
        first = await client.keys.put("r/a", b"1")
        await client.keys.put("r/ab", b"not this one")
        await client.keys.put("r/a", b"2")
        async with client.watch("r/a", from_revision=first.revision) as events:
            assert values(await take(events, 2)) == [b"1", b"2"]


async def test_the_end_of_a_lease_is_seen_as_a_deletion(shared: EtcdServer) -> None:
    async with EtcdClient(shared.endpoint) as client:
        lease = await client.leases.grant(30)
        await client.keys.put("l/a", b"", lease=lease.id)
        async with client.watch("l/", prefix=True) as events:
            await take(events, 1)
            await client.leases.revoke(lease.id)
            [gone] = await take(events, 1)
            assert isinstance(gone, KeyDeleted)


async def test_a_reader_may_stop_waiting_and_lose_nothing(shared: EtcdServer) -> None:
    async with EtcdClient(shared.endpoint) as client, client.watch("w/", prefix=True) as events:
        await take(events, 1)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.05)
        await client.keys.put("w/a", b"1")
        assert values(await take(events, 1)) == [b"1"]


async def test_a_killed_and_restarted_etcd_loses_and_doubles_no_event(etcd: EtcdServer) -> None:
    async with EtcdClient(etcd.endpoint) as client, client.watch("k/", prefix=True) as events:
        await started(events)
        expected = []
        for round_ in range(2):
            for i in range(20):
                expected.append(f"{round_}-{i}".encode())
                await client.keys.put(f"k/{i % 3}", expected[-1])
            # Killed with events in flight, some read and some not.
            etcd.kill()
            await until_broken(events)
            await asyncio.to_thread(etcd.start)
        expected.append(b"last")
        await client.keys.put("k/x", b"last", timeout_s=PATIENCE_S)
        assert values(await take(events, len(expected))) == expected
        assert events.broken_since is None


async def test_a_stopped_and_restarted_etcd_loses_no_event(etcd: EtcdServer) -> None:
    """A goodbye ends the stream in other ways than a kill does."""
    async with EtcdClient(etcd.endpoint) as client, client.watch("g/", prefix=True) as events:
        await started(events)
        await client.keys.put("g/a", b"1")
        await asyncio.to_thread(etcd.terminate)
        await until_broken(events)
        await asyncio.to_thread(etcd.start)
        await client.keys.put("g/a", b"2", timeout_s=PATIENCE_S)
        assert values(await take(events, 2)) == [b"1", b"2"]


async def test_a_stream_that_has_lived_out_its_time_is_followed_by_another(
    shared: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockyard.common.etcd.watch._STREAM_LIFE_S", 0.3)
    async with EtcdClient(shared.endpoint) as client, client.watch("s/", prefix=True) as events:
        await take(events, 1)
        expected = [str(i).encode() for i in range(30)]
        for value in expected:
            await client.keys.put("s/a", value)
            await asyncio.sleep(0.05)
        assert values(await take(events, 30)) == expected


async def test_a_client_closed_under_a_watch_ends_it(shared: EtcdServer) -> None:
    client = EtcdClient(shared.endpoint)
    async with client:
        watch = client.watch("u/", prefix=True)
        await watch.__aenter__()
        await started(watch)
    with pytest.raises(RuntimeError, match="closed"):
        await take(watch, 1)
    await watch.__aexit__(None, None, None)
    with pytest.raises(RuntimeError, match="closed"):
        await client.keys.get("u/a")


async def test_changes_made_while_the_watch_was_blind_are_delivered(etcd: EtcdServer) -> None:
    """The watch goes through a forwarder of ours, which is cut while another client writes."""
    async with behind_forwarder(etcd, "b/") as (forwarder, writer, events):
        await writer.keys.put("b/a", b"1")
        await take(events, 1)
        await forwarder.cut()
        await until_broken(events)
        for i in range(5):
            await writer.keys.put("b/a", str(i).encode())
        await forwarder.open()
        assert values(await take(events, 5)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_was_compacted_meanwhile_is_replaced_by_a_fresh_listing(etcd: EtcdServer) -> None:
    async with behind_forwarder(etcd, "c/") as (forwarder, writer, events):
        await forwarder.cut()
        await until_broken(events)
        await writer.keys.put("c/gone", b"")
        await writer.keys.delete("c/gone")
        last = await writer.keys.put("c/stays", b"s")
        etcd.ctl("compact", str(last.revision))
        await forwarder.open()
        [resync] = await take(events, 1)
        assert isinstance(resync, Resync)
        assert resync.reason is ResyncReason.COMPACTED
        assert [kv.key for kv in resync.listing.kvs] == ["c/stays"]
        await writer.keys.put("c/next", b"n")
        assert values(await take(events, 1)) == [b"n"]


async def test_a_wiped_etcd_is_noticed(etcd: EtcdServer) -> None:
    async with EtcdClient(etcd.endpoint) as client, client.watch("z/", prefix=True) as events:
        for i in range(10):
            await client.keys.put("z/a", str(i).encode())
        async with asyncio.timeout(PATIENCE_S):
            while not (isinstance(event := await anext(events), KeyPut) and event.kv.value == b"9"):
                pass
        etcd.kill()
        etcd.wipe()
        await asyncio.to_thread(etcd.start)
        [resync] = await take(events, 1)
        assert isinstance(resync, Resync)
        assert (resync.reason, resync.listing.kvs) == (ResyncReason.WENT_BACK, ())
        await client.keys.put("z/b", b"anew", timeout_s=PATIENCE_S)
        assert values(await take(events, 1)) == [b"anew"]


async def test_a_watch_moves_to_another_endpoint_when_its_own_hangs(etcd: EtcdServer) -> None:
    """A hung endpoint keeps its connection up: only the keep-alive of the connection can tell."""
    async with behind_forwarder(etcd, "h/", etcd.endpoint) as (forwarder, writer, events):
        forwarder.freeze()
        await writer.keys.put("h/a", b"1")
        assert values(await take(events, 1)) == [b"1"]
