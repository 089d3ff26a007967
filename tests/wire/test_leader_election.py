"""Real leaders on a real etcd: who leads, who stands by, and what becomes of it when one of them dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


def uid(etcd: EtcdServer) -> str:
    return etcd.ctl("get", "/blockyard/test/uid", "--print-value-only").strip()


def test_one_leads_and_the_other_names_it_until_it_takes_over(etcd: EtcdServer) -> None:
    with LeaderProcess(etcd.endpoint, "a") as first:
        first.wait_leads()
        with LeaderProcess(etcd.endpoint, "b") as second:
            wait_for(lambda: second.get("/v1/workers")[1]["leader"], 20, "the standby knows the leader", second.log)
            for path in ("/v1/workers", f"/v1/where?key={'0' * 64}", f"/v1/match?keys={'0' * 64}"):
                status, answer = second.get(path)
                assert status == 503
                assert answer["leader"]["http"] == first.http
                assert first.http in answer["error"]
            assert second.get("/healthz")[0] == second.get("/metrics")[0] == 200
            status, ready = second.get("/readyz")
            assert (status, ready["role"], ready["leader"]["node"]) == (503, "standby", "a")

            known, (_, before) = uid(etcd), first.get("/v1/workers")
            first.kill()
            second.wait_leads()
            assert uid(etcd) == known
            assert second.get("/v1/workers")[1]["epoch"] > before["epoch"]

            # The one that was killed comes back as a standby.
            first.start()
            wait_for(lambda: first.get("/v1/workers")[1].get("leader"), 20, "it stands by", first.log)
            assert first.get("/v1/workers")[1]["leader"]["node"] == "b"


def test_a_leader_told_to_end_hands_over_at_once(etcd: EtcdServer) -> None:
    # A lease far longer than the test's patience: only giving it up lets the other take over.
    with LeaderProcess(etcd.endpoint, "a", ttl="120s") as first:
        first.wait_leads()
        with LeaderProcess(etcd.endpoint, "b", ttl="120s") as second:
            assert first.terminate() == 0
            second.wait_leads()
            assert second.terminate() == 0
    assert etcd.ctl("get", "/blockyard/test/leader") == ""


def test_etcd_killed_and_restarted_under_a_leader(etcd: EtcdServer) -> None:
    with LeaderProcess(etcd.endpoint, "a") as leader:
        leader.wait_leads()
        known = uid(etcd)
        etcd.kill()
        _, answer = wait_for(
            lambda: found if (found := leader.get("/v1/workers"))[0] == 503 else None,
            30,
            "the lease margin is spent",
            leader.log,
        )
        assert answer["leader"] is None
        assert "no leader is known" in answer["error"]
        ready = leader.get("/readyz")[1]
        assert {item["what"] for item in ready["degraded"]} >= {"leadership"}
        assert all(item["since"] and item["detail"] for item in ready["degraded"])
        assert leader.get("/healthz")[0] == 200

        etcd.start()
        leader.wait_leads(30)
        assert uid(etcd) == known
        assert leader.alive


def test_etcd_wiped_means_a_new_uid(etcd: EtcdServer) -> None:
    with LeaderProcess(etcd.endpoint, "a") as leader:
        leader.wait_leads()
        known = uid(etcd)
        etcd.kill()
        etcd.wipe()
        etcd.start()
        wait_for(lambda: uid(etcd), 30, "there is a uid again", leader.log)
        leader.wait_leads(30)
        assert uid(etcd) != known


def test_a_leader_starts_before_etcd_and_waits_for_it(etcd: EtcdServer) -> None:
    etcd.kill()
    with LeaderProcess(etcd.endpoint, "a") as leader:
        assert leader.get("/healthz")[0] == 200
        assert leader.get("/readyz")[0] == 503
        etcd.start()
        leader.wait_leads(30)


def test_a_taken_port_is_one_clear_line(etcd: EtcdServer) -> None:
    with (
        LeaderProcess(etcd.endpoint, "a") as leader,
        pytest.raises(RuntimeError, match=f"http_listen = {leader.http}: cannot listen there"),
    ):
        LeaderProcess(etcd.endpoint, "b", http_listen=leader.http).__enter__()


def test_a_frozen_etcd_costs_the_lead_only_while_it_is_frozen(etcd: EtcdServer) -> None:
    """The margin is spent and the lease renewed after all: no state of the key changes in between."""
    with LeaderProcess(etcd.endpoint, "a", ttl="3s") as leader:
        leader.wait_leads()
        epoch = leader.get("/v1/workers")[1]["epoch"]
        etcd.freeze()
        wait_for(lambda: not leader.leads(), 30, "the lease margin is spent", leader.log)
        etcd.thaw()
        leader.wait_leads(30)
        assert leader.get("/v1/workers")[1]["epoch"] >= epoch
