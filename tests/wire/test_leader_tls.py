"""Links to the leader under mutual TLS: a certificate's name is the worker's name."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.common.errors import BlockyardError
from blockyard.common.messages import cluster as wire
from blockyard.common.tls import client_context
from support.authority import Authority
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess
from support.raw_worker import RawWorker, register

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="module")
def leader(etcd: EtcdServer, authority: Authority) -> Iterator[LeaderProcess]:
    cert, key = authority.issue("leader-a")
    tls = {"insecure": "false", "tls_ca": str(authority.ca), "tls_cert": str(cert), "tls_key": str(key)}
    with LeaderProcess(etcd.endpoint, "leader-a", **tls) as process:
        process.wait_leads()
        yield process


def context(authority: Authority, name: str) -> ssl.SSLContext:
    return client_context(authority.ca, *authority.issue(name))


def test_a_worker_with_its_own_certificate_is_welcome(
    etcd: EtcdServer, leader: LeaderProcess, authority: Authority
) -> None:
    with RawWorker(leader.link, context(authority, "n1")) as worker:
        assert isinstance(worker.greet("n1", register(etcd, "n1")), wire.LinkWelcome)
    assert leader.get("/readyz")[1]["insecure"] is False


def test_a_worker_with_the_certificate_of_another_is_turned_away(
    etcd: EtcdServer, leader: LeaderProcess, authority: Authority
) -> None:
    with RawWorker(leader.link, context(authority, "n2")) as worker:
        refused = worker.greet("n1", register(etcd, "n1"))
    assert isinstance(refused, wire.LinkRefused)
    assert refused.code == "identity"
    assert "'n2'" in refused.detail


def test_nobody_else_gets_a_link(leader: LeaderProcess, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "theirs")
    foreign = client_context(authority.ca, *stranger.issue("n1"))
    anonymous = ssl.create_default_context(cafile=str(authority.ca))
    for tls in (foreign, anonymous, None):
        with pytest.raises((OSError, BlockyardError)), RawWorker(leader.link, tls) as worker:
            worker.greet("n1", 1)
    assert leader.alive
