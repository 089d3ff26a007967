"""A cluster in which every name is checked: etcd lets in by the certificate's CN what its users may do, leaders and
workers know each other by it. Nothing of it is lost when a member of etcd or a leader dies."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.attach_client import Engine, key
from support.authority import Authority
from support.etcd_cluster import EtcdCluster
from support.etcd_server import ServerTls
from support.leader_process import LeaderProcess, wait_for
from support.live_cluster import LEADERS, LEASE_S, WORKERS, LiveCluster, epoch
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

SECONDS = 40.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def etcd(authority: Authority) -> Iterator[EtcdCluster]:
    with EtcdCluster(tls=ServerTls(authority.ca, *authority.issue("etcd"))) as cluster:
        cluster.members[0].admit_only("/blockyard/", *LEADERS, *WORKERS)
        yield cluster


def test_a_member_and_then_the_leader_die_where_every_name_is_checked(etcd: EtcdCluster, authority: Authority) -> None:
    with LiveCluster(etcd.endpoints, authority.settings) as cluster:
        before, leader = cluster.incarnations(), cluster.wait_leader()
        etcd.members[0].kill()
        time.sleep(LEASE_S * 1.5)
        cluster.wait_registered()
        old, term = cluster.wait_leader(), epoch(leader)
        old.kill()
        leader, took = cluster.take_over(old)
        print(f"with two of three members {old.node} killed, {leader.node} leads: {took}")
        assert epoch(leader) > term
        etcd.members[0].start()
        old.start()
        cluster.settled(leader)
        assert cluster.incarnations() == before


@pytest.fixture(scope="module")
def leader(etcd: EtcdCluster, authority: Authority) -> Iterator[LeaderProcess]:
    with LeaderProcess(etcd.endpoints, "leader-a", cluster="one", **authority.settings("leader-a")) as process:
        process.wait_leads()
        yield process


def worker_of(etcd: EtcdCluster, settings: dict[str, str]) -> WorkerProcess:
    return WorkerProcess(cluster="one", etcd=etcd.endpoints, node_id="node-1", lease_ttl="2s", **settings)


@dataclass(frozen=True)
class Wrong:
    """A certificate that a leader must not take, and how it is told at both sides."""

    link: Callable[[Authority, Path], dict[str, str]]
    reason: str
    at_the_worker: str
    at_the_leader: str


ITS_LOG = "its log says why"
WRONG = {
    "of another node": Wrong(
        lambda ours, _: ours.link_settings("node-2"), "identity", "of 'node-2'", "worker node-1 came with"
    ),
    "expired": Wrong(
        lambda ours, _: ours.link_settings("node-1", expired=True), "tls", ITS_LOG, "certificate has expired"
    ),
    "of another authority": Wrong(
        lambda ours, folder: Authority(folder / "theirs").link_settings("node-1") | {"tls_ca": str(ours.ca)},
        "tls",
        ITS_LOG,
        "unable to get local issuer",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_workers_wrong_certificate_is_refused_counted_and_told_once(
    etcd: EtcdCluster, authority: Authority, leader: LeaderProcess, tmp_path: Path, wrong: Wrong
) -> None:
    def tries() -> float:
        return leader.metric("links_refused_total", reason=wrong.reason)

    before = tries()
    settings = authority.etcd_settings("node-1") | wrong.link(authority, tmp_path)
    with worker_of(etcd, settings) as worker, Engine(worker.socket) as engine:
        wait_for(lambda: tries() >= before + 3, SECONDS, "it tries again", leader.log)
        content = b"x" * 8192
        engine.store({key(1): content})
        assert engine.load(engine.acquire([key(1)]), [key(1)]) == [content]
        (told,) = lines(worker.log, "leader link ")
        assert wrong.at_the_worker in told
        assert wrong.at_the_worker in worker.ready()[1]["leader"]
        assert worker.metric("leader_link", state="live") == 0
    (told,) = lines(leader.log(), wrong.at_the_leader, "turned away")
    assert f"reason={wrong.reason} " in told
    assert leader.leads()


@pytest.mark.parametrize("kind", ["expired", "of another authority"])
def test_a_leaders_wrong_certificate_is_refused_by_its_workers(
    etcd: EtcdCluster, authority: Authority, tmp_path: Path, kind: str
) -> None:
    names = {"cluster": kind.replace(" ", "-"), "lease_ttl": "2s"}
    link = (
        authority.link_settings("leader-b", expired=True)
        if kind == "expired"
        else Authority(tmp_path / "theirs").link_settings("leader-b") | {"tls_ca": str(authority.ca)}
    )
    with (
        LeaderProcess(etcd.endpoints, "leader-b", **authority.etcd_settings("leader-b") | link | names) as leader,
        WorkerProcess(etcd=etcd.endpoints, node_id="node-1", **authority.settings("node-1") | names) as worker,
    ):
        wait_for(lambda: leader.metric("links_refused_total", reason="tls") >= 3, SECONDS, "it tries", leader.log)
        (told,) = lines(worker.log, "leader link ")
        assert "certificate verify failed" in told
        assert worker.ready()[1]["leader"]
        assert worker.alive and leader.leads()


@pytest.mark.parametrize("kind", ["expired", "of another authority"])
def test_a_certificate_that_does_not_get_to_etcd_is_told_in_one_line(
    etcd: EtcdCluster, authority: Authority, tmp_path: Path, kind: str
) -> None:
    files = authority.settings("node-1")
    if kind == "expired":
        cert, key_file = authority.issue_expired("node-1")
        files |= {"etcd_cert": str(cert), "etcd_key": str(key_file)}
    else:
        files |= {"etcd_ca": str(Authority(tmp_path / "theirs").ca)}
    with worker_of(etcd, files) as worker, Engine(worker.socket) as engine:
        wait_for(lambda: "certificate" in worker.ready()[1].get("registration", ""), SECONDS, "it says why")
        engine.store({key(2): b"x" * 8192})
        (told,) = lines(worker.log, "not registered")
        assert "certificate" in told
        # What gRPC itself says of it on standard error, at each of its tries, is nobody's help.
        assert [line for line in worker.log.splitlines() if " worker " not in line] == []


def test_whom_etcd_does_not_let_in_says_so_and_goes_on_when_it_does(etcd: EtcdCluster, authority: Authority) -> None:
    late = {"cluster": "late", "lease_ttl": "2s"}
    with (
        LeaderProcess(etcd.endpoints, "leader-x", **authority.settings("leader-x") | late) as leader,
        WorkerProcess(etcd=etcd.endpoints, node_id="node-x", **authority.settings("node-x") | late) as worker,
    ):
        wait_for(lambda: "permission denied" in worker.ready()[1].get("registration", ""), SECONDS, "it says so")
        wait_for(lambda: "permission denied" in leader.get("/readyz")[1]["degraded"][0]["detail"], SECONDS, "it too")
        for name in ("leader-x", "node-x"):
            etcd.members[0].admit(name)
        worker.wait_metric("leader_link", 1, state="live")
        assert worker.ready() == (True, {})


def lines(log: str, *words: str) -> list[str]:
    """Lines above info with all of these words."""
    return [
        line
        for line in log.splitlines()
        if (" warning " in line or " error " in line) and all(word in line for word in words)
    ]
