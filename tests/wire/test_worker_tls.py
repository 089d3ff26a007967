"""A worker, its leader and their etcd over mutual TLS: each by its certificate's name, and nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.attach_client import Engine
from support.authority import Authority
from support.etcd_server import EtcdServer, ServerTls
from support.leader_process import LeaderProcess, wait_for
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

SECONDS = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def etcd(authority: Authority) -> Iterator[EtcdServer]:
    with EtcdServer(tls=ServerTls(authority.ca, *authority.issue("etcd"))) as server:
        yield server


def secured(authority: Authority, name: str) -> dict[str, str]:
    """Settings of a node whose certificates carry this name."""
    cert, key = map(str, authority.issue(name))
    ca = str(authority.ca)
    files = {"etcd_ca": ca, "etcd_cert": cert, "etcd_key": key, "tls_ca": ca, "tls_cert": cert, "tls_key": key}
    return files | {"insecure": "false"}


def test_a_worker_and_its_leader_know_each_other_by_certificate(etcd: EtcdServer, authority: Authority) -> None:
    leader = LeaderProcess(etcd.endpoint, "leader-1", cluster="one", **secured(authority, "leader-1"))
    worker = WorkerProcess(
        cluster="one", etcd=etcd.endpoint, node_id="node-1", lease_ttl="2s", **secured(authority, "node-1")
    )
    with leader, worker, Engine(worker.socket):
        worker.wait_metric("leader_link", 1, state="live")
        assert [one["node"] for one in leader.get("/v1/workers")[1]["workers"]] == ["node-1"]


def test_a_leader_with_the_certificate_of_another_node_is_refused(etcd: EtcdServer, authority: Authority) -> None:
    leader = LeaderProcess(etcd.endpoint, "leader-2", cluster="two", **secured(authority, "someone"))
    worker = WorkerProcess(
        cluster="two", etcd=etcd.endpoint, node_id="node-1", lease_ttl="2s", **secured(authority, "node-1")
    )
    with leader, worker, Engine(worker.socket):
        worker.wait_metric("leader_link", 1, state="refused")
        ready, degraded = worker.ready()
        assert ready
        assert "'someone', not of 'leader-2'" in degraded["leader"]


def test_a_worker_of_another_authority_gets_no_link(etcd: EtcdServer, authority: Authority, tmp_path: Path) -> None:
    stranger = secured(Authority(tmp_path / "theirs"), "node-1")
    ours = {name: value for name, value in secured(authority, "node-1").items() if name.startswith("etcd")}
    leader = LeaderProcess(etcd.endpoint, "leader-3", cluster="three", **secured(authority, "leader-3"))
    worker = WorkerProcess(cluster="three", etcd=etcd.endpoint, node_id="node-1", lease_ttl="2s", **(stranger | ours))
    with leader, worker, Engine(worker.socket):
        worker.wait_metric("etcd_registration", 1, state="registered")
        wait_for(lambda: "certificate" in worker.ready()[1].get("leader", ""), SECONDS, "it says why")
        assert worker.metric("leader_link", state="live") == 0


def test_files_that_do_not_belong_together_end_the_start(authority: Authority, tmp_path: Path) -> None:
    settings = secured(authority, "node-1")
    settings["tls_key"] = str(authority.issue("node-2")[1])
    with WorkerProcess(spawn_only=True, etcd="127.0.0.1:2379", **settings) as worker:
        worker.spawn()
        assert worker.wait() == 2
        assert "right: PEM files that belong together" in worker.log
        assert len(worker.log.splitlines()) == 1
