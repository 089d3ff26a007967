"""An engine that has nothing to do for several lease and ping times, and then a request."""

from __future__ import annotations

import time

import pytest

from blockyard.common.messages.states import KeyState
from support.engine_side import EngineSide, key_of, states
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess
from support.worker_books import check_idle, wait_leader_agrees
from support.worker_process import WorkerProcess

LEASE_S = 2
SILENCE_S = 15
"""After so long without a word a leader cuts a worker's link."""

KEYS = [key_of(1), key_of(2)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("idle", [3 * LEASE_S + 1, pytest.param(3 * SILENCE_S + 1, marks=pytest.mark.long)])
def test_idle_for_three_times_a_lease_and_then_hits(idle: float) -> None:
    with (
        EtcdServer() as etcd,
        LeaderProcess(etcd.endpoint, "a", ttl=f"{LEASE_S}s") as leader,
        WorkerProcess(etcd=etcd.endpoint, cluster="test", lease_ttl=f"{LEASE_S}s") as worker,
        EngineSide(worker.socket, verify="always") as engine,
    ):
        engine.wait_attached()
        for index, key in enumerate(KEYS):
            engine.write(index, key)
        assert engine.store(KEYS).ok
        worker.wait_metric("checksum_backlog", 0)
        leader.wait_leads()
        wait_leader_agrees(leader, worker, "test-node")
        before = leader.get("/v1/workers")[1]["workers"][0]["incarnation"]

        time.sleep(idle)

        assert states(engine.ask(KEYS)) == [KeyState.HIT] * len(KEYS), "at the first try"
        engine.zero()
        assert engine.load(KEYS).ok
        assert all(engine.holds(index, key) for index, key in enumerate(KEYS))
        engine.scheduler.finish("request")
        assert not engine.scheduler.detachments and not engine.rank.detachments
        wait_leader_agrees(leader, worker, "test-node")
        after = leader.get("/v1/workers")[1]["workers"][0]
        assert (after["state"], after["incarnation"]) == ("live", before)
        check_idle(worker)
