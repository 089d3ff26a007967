"""etcd's data changes under those who follow it, in ways that their watches cannot see: they look again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from blockyard.common.etcd import (
    EtcdClient,
    Held,
    KeyState,
    LeasedKey,
    LeaseTerms,
    Resync,
    ResyncReason,
    Waiting,
)
from blockyard.leader.core import events
from blockyard.leader.roster import Roster
from blockyard.worker.election_key import LeaderAddress
from blockyard.worker.health import Health
from blockyard.worker.leader_finder import LeaderFinder
from support.etcd_server import EtcdServer
from support.polling import until

UID = "ab" * 16


@pytest.fixture
async def client() -> AsyncIterator[EtcdClient]:
    with EtcdServer() as etcd:
        async with EtcdClient(etcd.endpoint, timeout_s=2) as client:
            yield client


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_workers_are_listed_again_when_the_machine_wants_it(client: EtcdClient) -> None:
    fed: list[events.Event] = []
    wanted = [False]
    roster = Roster(client, "/c", feed=fed.append, awaits_list=lambda: wanted[0])
    async with running(roster.run()):
        await until(lambda: len(fed) == 1)
        wanted[0] = True
        await until(lambda: len(fed) >= 2)
        wanted[0] = False
    assert {type(event) for event in fed} == {events.WorkersListed}


async def test_a_leader_that_is_doubted_is_looked_up_again(client: EtcdClient) -> None:
    await client.keys.put("/c/uid", UID.encode())
    await client.keys.put("/c/leader", json.dumps({"node": "a", "link": "127.0.0.1:1"}).encode())
    found: list[LeaderAddress] = []
    finder = LeaderFinder(client, "/c", Health(), found.append)
    async with running(finder.run()):
        await until(lambda: len(found) == 1)
        # As after a wipe that the watch missed: another uid, without any news of the election key.
        await client.keys.put("/c/uid", UID[::-1].encode())
        finder.doubt()
        await until(lambda: len(found) == 2)
    assert [leader.epoch.cluster_uid.hex() for leader in found] == [UID, UID[::-1]]


async def test_a_doubt_does_not_hide_that_etcd_went_back(client: EtcdClient) -> None:
    """The doubt ends the watch that would have noticed; the epochs of the restored data must count all the same."""
    await client.keys.put("/c/uid", UID.encode())
    entry = json.dumps({"node": "a", "link": "127.0.0.1:1"}).encode()
    await client.keys.put("/c/leader", entry)
    found: list[LeaderAddress] = []
    finder = LeaderFinder(client, "/c", Health(), found.append)
    older = await client.keys.list("/c/leader", prefix=False)
    await finder._take(Resync(replace(older, revision=older.revision + 5), ResyncReason.START))
    await finder._take(Resync(older, ResyncReason.START))
    assert [leader.history for leader in found] == [0, 1]


async def test_a_standby_campaigns_though_a_wipe_was_hidden_from_its_watch() -> None:
    """The new data has as many revisions as the old had, so the watch goes on as if nothing had happened."""
    with EtcdServer() as etcd:
        async with EtcdClient(etcd.endpoint, timeout_s=2) as client:
            holder = await client.keys.put("k", b"another")
            states: list[KeyState] = []
            key = LeasedKey(client, "k", b"v", terms=LeaseTerms(2, 0.5), alive=lambda: True, on_change=states.append)
            async with running(key.run()):
                await until(lambda: isinstance(key.state, Waiting))
                await asyncio.to_thread(wipe_unseen, etcd, holder.revision + 3)
                await key.wait_held(20)
    assert [type(state) for state in states[:2]] == [Waiting, Held]


def wipe_unseen(etcd: EtcdServer, revision: int) -> None:
    """Lose all data, and bring the new data to at least this revision before any client sees it."""
    etcd.kill()
    etcd.wipe()
    with etcd.elsewhere():
        for _ in range(revision):
            etcd.ctl("put", "other", "v")
    etcd.start()


async def test_an_entry_of_the_same_revision_under_another_lease_is_not_ours(client: EtcdClient) -> None:
    """Young stores count alike: after a wipe another process may have made the key at the very same revision."""
    states: list[KeyState] = []
    key = LeasedKey(client, "k", b"v", terms=LeaseTerms(3, 0.5), alive=lambda: True, on_change=states.append)
    assert not key.is_ours(None)
    async with running(key.run()):
        await key.wait_held(10)
        current = await client.keys.get("k")
        assert current is not None and key.is_ours(current)
        assert not key.is_ours(replace(current, lease=current.lease + 1))
