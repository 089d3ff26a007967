"""A cluster loses leaders, leases and members of its etcd, again and again, under load: engines never notice, by the
books of both sides, and the index of whoever leads is soon right again. The measured times are printed (-s shows
them); none is asserted."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.etcd_cluster import EtcdCluster
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.leader_world import HOST, change, key, snapshot
from support.live_cluster import LEASE_S, PATIENCE_S, LiveCluster, epoch
from support.raw_worker import RawWorker, register, unregister
from support.tcp_forwarder import Way
from support.worker_process import WorkerProcess


def test_a_standby_takes_over_each_time_the_leader_is_killed() -> None:
    kill_leaders(3)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_standby_takes_over_ten_times() -> None:
    kill_leaders(10)


def kill_leaders(times: int) -> None:
    with EtcdServer() as etcd, LiveCluster(etcd.endpoint) as cluster:
        before = cluster.incarnations()
        leader = cluster.wait_leader()
        for _ in range(times):
            old, term = leader, epoch(leader)
            old.kill()
            leader, took = cluster.take_over(old)
            print(f"{old.node} killed, {leader.node} leads: {took}")
            assert epoch(leader) > term
            old.start()
        cluster.settled(leader)
        assert cluster.incarnations() == before


def test_a_leader_that_slept_past_its_lease_does_no_harm() -> None:
    with EtcdServer() as etcd, LiveCluster(etcd.endpoint) as cluster:
        old = cluster.wait_leader()
        term = epoch(old)
        old.freeze()
        with ThreadPoolExecutor(1) as pool:
            try:
                leader, took = cluster.take_over(old)
                # Lies in its socket when it wakes, before anyone can tell it that it was replaced.
                asked = pool.submit(old.get, f"/v1/where?key={'0' * 64}")
                time.sleep(0.3)
            finally:
                old.thaw()
            print(f"{old.node} asleep, {leader.node} leads: {took}")
            status, answer = asked.result()
        assert (status, answer.get("holders")) == (503, None)
        wait_for(lambda: _names(old.get("/v1/workers"), leader.node), PATIENCE_S, "it names the new one", old.log)
        assert epoch(leader) > term
        cluster.settled(leader)
        cluster.wait_registered()
        assert cluster.wait_leader() is leader


def _names(answer: tuple[int, dict[str, dict[str, str] | None]], node: str) -> bool:
    status, content = answer
    assert status == 503, content
    return (content["leader"] or {}).get("node") == node


def test_members_of_etcd_die_in_turn() -> None:
    with EtcdCluster() as etcd, LiveCluster(etcd.endpoints) as cluster:
        before, term = cluster.incarnations(), epoch(cluster.wait_leader())
        for member in etcd.members:
            member.kill()
            # Whoever cannot renew any more has lost its lease by then.
            time.sleep(LEASE_S * 1.5)
            cluster.wait_registered()
            cluster.settled(cluster.wait_leader())
            member.start()
        # Without most of its members etcd answers nobody.
        for member in etcd.members[1:]:
            member.kill()
        wait_for(lambda: not any(one.leads() for one in cluster.leaders), PATIENCE_S, "nobody leads")
        etcd.members[2].start()
        leader = cluster.wait_leader()
        cluster.wait_registered()
        cluster.settled(leader)
        after = cluster.incarnations()
        print(f"incarnations {before} then {after}, epoch {term} then {epoch(leader)}")
        assert epoch(leader) >= term
        assert all(after[node] >= before[node] for node in before)


def test_an_etcd_wiped_under_all_of_them_is_filled_again() -> None:
    with EtcdServer() as etcd, LiveCluster(etcd.endpoint) as cluster:
        known = _uid(etcd)
        etcd.kill()
        etcd.wipe()
        etcd.start()
        uid = wait_for(lambda: _uid(etcd), PATIENCE_S, "there is a uid again")
        assert uid != known
        entries = "/blockyard/test/workers/"
        wait_for(lambda: etcd.ctl("get", entries, "--prefix", "--keys-only").count(entries) == 2, PATIENCE_S, "entries")
        # Another than the elected one may believe in its old lease for a moment.
        leader = wait_for(lambda: _elected(etcd, cluster), PATIENCE_S, "the elected one leads")
        cluster.wait_registered()
        cluster.settled(leader)


def test_leases_revoked_under_all_of_them_are_had_anew_and_no_chunk_is_lost() -> None:
    with EtcdServer() as etcd, LiveCluster(etcd.endpoint) as cluster:
        before, term = cluster.incarnations(), epoch(cluster.wait_leader())
        for entry in ("workers/node-1", "workers/node-2", "leader"):
            etcd.ctl("lease", "revoke", _lease(etcd, f"/blockyard/test/{entry}"))
        wait_for(
            lambda: all(now > before[node] for node, now in cluster.incarnations().items()), PATIENCE_S, "new ones"
        )
        leader = wait_for(lambda: _elected(etcd, cluster), PATIENCE_S, "the elected one leads")
        assert epoch(leader) > term
        cluster.wait_registered()
        cluster.settled(cluster.wait_leader())


def test_a_worker_follows_a_leader_elected_while_it_saw_nothing_of_etcd() -> None:
    """And what it did not see cannot be told it any more."""
    with (
        EtcdServer() as etcd,
        Way(etcd.endpoint) as way,
        LeaderProcess(etcd.endpoint, "old") as old,
        LeaderProcess(etcd.endpoint, "new") as new,
        WorkerProcess(cluster="test", etcd=way.endpoint, lease_ttl="60s") as worker,
    ):
        old, new = (old, new) if old.leads() else (new, old)
        worker.wait_metric("leader_link", 1, state="live")
        incarnation = worker.metric("incarnation")
        way.cut()
        old.kill()
        new.wait_leads()
        _compact(etcd)
        way.open()
        wait_for(lambda: _states(new) == {"test-node": "live"}, PATIENCE_S, "it is known", lambda: worker.log)
        worker.wait_metric("leader_link", 1, state="live")
        assert worker.metric("incarnation") == incarnation


def test_a_leader_knows_of_workers_that_came_and_went_while_it_saw_nothing_of_etcd() -> None:
    with (
        EtcdServer() as etcd,
        Way(etcd.endpoint) as way,
        LeaderProcess(way.endpoint, "a", ttl="60s") as leader,
    ):
        leader.wait_leads()
        with RawWorker(leader.link) as gone, RawWorker(leader.link) as stays:
            for worker, node in ((gone, "gone"), (stays, "stays")):
                worker.greet(node, register(etcd, node))
                worker.send(*snapshot(0, change(1, HOST)))
            wait_for(lambda: set(_states(leader).values()) == {"live"}, PATIENCE_S, "both are known", leader.log)
            way.cut()
            unregister(etcd, "gone")
            register(etcd, "came")
            _compact(etcd)
            way.open()
            wait_for(lambda: set(_states(leader)) == {"stays", "came"}, PATIENCE_S, "it sees who is there", leader.log)
            assert _states(leader)["stays"] == "live"
            holders = leader.get(f"/v1/where?key={key(1).hex()}")[1]["holders"]
            assert [holder["node"] for holder in holders] == ["stays"]


def _states(leader: LeaderProcess) -> dict[str, str]:
    """Each worker's state, as the leader says."""
    return {one["node"]: one["state"] for one in leader.get("/v1/workers")[1].get("workers", ())}


def _compact(etcd: EtcdServer) -> None:
    """Forget all that came before now."""
    etcd.ctl("put", "elsewhere", "v")
    now = json.loads(etcd.ctl("get", "elsewhere", "-w", "json"))["header"]["revision"]
    etcd.ctl("compact", str(now))


def _lease(etcd: EtcdServer, entry: str) -> str:
    """The lease that an entry is under, as etcdctl writes it."""
    return f"{json.loads(etcd.ctl('get', entry, '-w', 'json'))['kvs'][0]['lease']:x}"


def _elected(etcd: EtcdServer, cluster: LiveCluster) -> LeaderProcess | None:
    """The only one that leads, if etcd names it."""
    named = etcd.ctl("get", "/blockyard/test/leader", "--print-value-only")
    leads = [leader for leader in cluster.leaders if leader.leads()]
    return leads[0] if named and [one.node for one in leads] == [json.loads(named)["node"]] else None


def _uid(etcd: EtcdServer) -> str:
    return etcd.ctl("get", "/blockyard/test/uid", "--print-value-only").strip()
