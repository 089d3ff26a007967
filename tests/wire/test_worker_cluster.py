"""A worker with etcd and a leader: in their absence, their death, and when they hang. Its engines never notice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.attach_client import Engine, hello, key
from support.etcd_server import EtcdServer, unused_port
from support.leader_process import LeaderProcess, wait_for
from support.worker_process import WorkerProcess

AREA = 8192
SECONDS = 40.0


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


def cluster_worker(endpoint: str, **settings: str) -> WorkerProcess:
    return WorkerProcess(cluster="test", etcd=endpoint, lease_ttl="2s", **settings)


def serves(worker: WorkerProcess, engine: Engine, number: int) -> None:
    """A whole store and load of a fresh chunk."""
    content = number.to_bytes(2, "big") * (AREA // 2)
    engine.store({key(number): content})
    assert engine.load(engine.acquire([key(number)]), [key(number)]) == [content]


def linked(worker: WorkerProcess) -> None:
    worker.wait_metric("leader_link", 1, state="live")


def held(leader: LeaderProcess, number: int) -> list[str]:
    """Nodes that hold a key, as the leader says."""
    status, content = leader.get(f"/v1/where?key={key(number).hex()}")
    return [holder["node"] for holder in content["holders"]] if status == 200 else []


def test_engines_are_served_with_an_etcd_that_was_never_there() -> None:
    with cluster_worker(f"127.0.0.1:{unused_port()}") as worker, Engine(worker.socket) as engine:
        serves(worker, engine, 1)
        ready, degraded = wait_for(lambda: told(worker, "etcd"), SECONDS, "etcd is told to be away")
        assert ready
        assert {"etcd", "leader", "registration"} <= degraded.keys()
        assert worker.metric("etcd_registration", state="pending") == 1
        assert worker.terminate() == 0


def told(worker: WorkerProcess, part: str) -> tuple[bool, dict[str, str]] | None:
    """What /readyz says, once a part is among the degraded."""
    ready, degraded = worker.ready()
    return (ready, degraded) if part in degraded else None


def test_a_worker_registers_and_takes_its_entry_back(etcd: EtcdServer) -> None:
    with cluster_worker(etcd.endpoint) as worker:
        worker.wait_metric("etcd_registration", 1, state="registered")
        entry = json.loads(etcd.ctl("get", "/blockyard/test/workers/test-node", "--print-value-only"))
        assert entry["node"] == "test-node"
        assert entry["pool_bytes"] == 16 << 20
        assert len(bytes.fromhex(entry["boot_id"])) == 16
        assert worker.metric("incarnation") > 0
        assert worker.terminate() == 0
        assert etcd.ctl("get", "/blockyard/test/workers/", "--prefix") == ""


def test_a_restarted_worker_is_a_new_incarnation_at_once(etcd: EtcdServer) -> None:
    with cluster_worker(etcd.endpoint) as worker:
        worker.wait_metric("etcd_registration", 1, state="registered")
        first = worker.metric("incarnation")
        worker.kill()
        worker.start()
        worker.wait_metric("etcd_registration", 1, state="registered")
        assert worker.metric("incarnation") > first


def test_the_leader_learns_what_is_stored_and_learns_it_again(etcd: EtcdServer) -> None:
    with cluster_worker(etcd.endpoint) as worker, Engine(worker.socket) as engine:
        serves(worker, engine, 1)
        with LeaderProcess(etcd.endpoint, "a") as leader:
            wait_for(lambda: held(leader, 1) == ["test-node"], SECONDS, "what was before it", lambda: worker.log)
            serves(worker, engine, 2)
            wait_for(lambda: held(leader, 2) == ["test-node"], SECONDS, "what came later", lambda: worker.log)
            leader.kill()
            serves(worker, engine, 3)
        worker.wait_metric("leader_link", 0, state="live")
        with LeaderProcess(etcd.endpoint, "b") as leader:
            for number in (1, 2, 3):
                wait_for(lambda n=number: held(leader, n) == ["test-node"], SECONDS, "it again", lambda: worker.log)
            linked(worker)
            ready, degraded = worker.ready()
            assert (ready, degraded) == (True, {})


def test_a_frozen_leader_and_a_frozen_etcd_hold_nobody_up(etcd: EtcdServer) -> None:
    with (
        cluster_worker(etcd.endpoint) as worker,
        LeaderProcess(etcd.endpoint, "a") as leader,
        Engine(worker.socket) as engine,
    ):
        linked(worker)
        leader.freeze()
        etcd.freeze()
        try:
            for number in range(20):
                serves(worker, engine, number)
            wait_for(lambda: told(worker, "leader"), SECONDS, "the leader is told to be silent")
            wait_for(lambda: told(worker, "etcd"), SECONDS, "etcd is told to be silent")
            serves(worker, engine, 30)
        finally:
            etcd.thaw()
            leader.thaw()
        linked(worker)
        wait_for(lambda: held(leader, 30) == ["test-node"], SECONDS, "it heard of the rest", lambda: worker.log)


def test_a_frozen_worker_comes_back_as_a_new_incarnation_with_its_chunks(etcd: EtcdServer) -> None:
    with (
        cluster_worker(etcd.endpoint) as worker,
        LeaderProcess(etcd.endpoint, "a") as leader,
        Engine(worker.socket) as engine,
    ):
        linked(worker)
        serves(worker, engine, 1)
        first = worker.metric("incarnation")
        worker.freeze()
        try:
            entry = "/blockyard/test/workers/test-node"
            wait_for(lambda: not etcd.ctl("get", entry), SECONDS, "its lease ends")
        finally:
            worker.thaw()
        wait_for(lambda: worker.metric("incarnation") > first, SECONDS, "it registers anew", lambda: worker.log)
        wait_for(lambda: held(leader, 1) == ["test-node"], SECONDS, "its chunk is known", lambda: worker.log)
        serves(worker, engine, 2)


def test_sigterm_is_not_held_up_by_a_frozen_etcd(etcd: EtcdServer) -> None:
    with cluster_worker(etcd.endpoint) as worker, Engine(worker.socket, hello(engine="last")):
        worker.wait_metric("etcd_registration", 1, state="registered")
        etcd.freeze()
        try:
            assert worker.terminate() == 0
        finally:
            etcd.thaw()


def test_etcd_wiped_and_rebuilt_is_a_new_cluster(etcd: EtcdServer) -> None:
    with cluster_worker(etcd.endpoint) as worker, Engine(worker.socket) as engine:
        with LeaderProcess(etcd.endpoint, "a") as leader:
            linked(worker)
            serves(worker, engine, 1)
            leader.kill()
        etcd.kill()
        etcd.wipe()
        etcd.start()
        with LeaderProcess(etcd.endpoint, "b") as leader:
            wait_for(lambda: held(leader, 1) == ["test-node"], SECONDS, "it is known there", lambda: worker.log)


def test_etcd_restored_from_a_backup_goes_back_in_its_epochs(etcd: EtcdServer) -> None:
    with cluster_worker(etcd.endpoint) as worker, Engine(worker.socket) as engine:
        with LeaderProcess(etcd.endpoint, "a") as leader:
            linked(worker)
            etcd.save()
            for number in range(20):
                etcd.ctl("put", "/elsewhere", str(number))
            leader.kill()
        with LeaderProcess(etcd.endpoint, "b") as leader:
            wait_for(lambda: worker.ready() == (True, {}), SECONDS, "it speaks to the second", lambda: worker.log)
            etcd.kill()
            etcd.restore()
            etcd.start()
            serves(worker, engine, 1)
            wait_for(lambda: held(leader, 1) == ["test-node"], SECONDS, "it is known there", lambda: worker.log)


def test_a_second_worker_of_one_name_takes_it_and_the_first_says_so(etcd: EtcdServer) -> None:
    with cluster_worker(etcd.endpoint) as first, Engine(first.socket) as engine:
        first.wait_metric("etcd_registration", 1, state="registered")
        with cluster_worker(etcd.endpoint) as second:
            second.wait_metric("etcd_registration", 1, state="registered")
            first.wait_metric("etcd_registration", 1, state="lost")
            wait_for(lambda: "node_id of its own" in first.ready()[1].get("registration", ""), SECONDS, "it says why")
            serves(first, engine, 1)
            assert second.metric("etcd_registration", state="registered") == 1
            second.terminate()
        first.wait_metric("etcd_registration", 1, state="registered")
