"""A cluster loses leaders and members of its etcd, again and again, under load: engines never notice, and the index
of whoever leads is soon right again. The measured times are printed (-s shows them); none is asserted."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.etcd_cluster import EtcdCluster
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.live_cluster import LEASE_S, PATIENCE_S, LiveCluster, epoch


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


def _elected(etcd: EtcdServer, cluster: LiveCluster) -> LeaderProcess | None:
    """The only one that leads, if etcd names it."""
    named = etcd.ctl("get", "/blockyard/test/leader", "--print-value-only")
    leads = [leader for leader in cluster.leaders if leader.leads()]
    return leads[0] if named and [one.node for one in leads] == [json.loads(named)["node"]] else None


def _uid(etcd: EtcdServer) -> str:
    return etcd.ctl("get", "/blockyard/test/uid", "--print-value-only").strip()
