"""Links to the leader under mutual TLS: a certificate's name is the worker's name."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from blockyard.common.errors import BlockyardError
from blockyard.common.messages import cluster as wire
from blockyard.common.tls import client_context
from blockyard.leader.entrance import STRANGERS
from support.authority import Authority
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.raw_worker import RawWorker, register

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

SECONDS = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


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
        before = turned_away(leader, "identity")
        refused = worker.greet("n1", register(etcd, "n1"))
    assert isinstance(refused, wire.LinkRefused)
    assert refused.code == "identity"
    assert "'n2'" in refused.detail
    assert turned_away(leader, "identity") == before + 1
    assert "worker n1 came with the certificate of 'n2'" in leader.log()


def test_nobody_else_gets_a_link_and_each_is_counted_and_told_once(
    leader: LeaderProcess, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "theirs")
    others = {
        "self-signed certificate|unable to get local issuer": client_context(authority.ca, *stranger.issue("n1")),
        "certificate has expired": client_context(authority.ca, *authority.issue_expired("n1")),
        "peer did not return a certificate": ssl.create_default_context(cafile=str(authority.ca)),
        "wrong version number|http request|unknown protocol": None,
    }
    descriptors = leader.descriptors()
    for words, tls in others.items():
        before = turned_away(leader, "tls")
        for _ in range(2):
            with pytest.raises((OSError, BlockyardError)), RawWorker(leader.link, tls) as worker:
                worker.greet("n1", 1)
        wait_for(lambda b=before: turned_away(leader, "tls") == b + 2, SECONDS, words, leader.log)
        told = [line for line in leader.log().splitlines() if re.search(words, line, re.IGNORECASE)]
        assert len(told) == 1, told
        assert "worker turned away" in told[0]
    wait_for(lambda: leader.descriptors() <= descriptors, SECONDS, "no descriptor is left behind")


def test_a_handshake_that_is_not_gone_on_with_is_ended(leader: LeaderProcess) -> None:
    before = turned_away(leader, "tls")
    host, port = leader.link.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as silent:
        assert silent.recv(1) == b""
    wait_for(lambda: turned_away(leader, "tls") == before + 1, SECONDS, "it is counted", leader.log)


def test_strangers_cannot_use_up_the_leaders_descriptors(etcd: EtcdServer, authority: Authority) -> None:
    cert, key = authority.issue("small")
    tls = {"insecure": "false", "tls_ca": str(authority.ca), "tls_cert": str(cert), "tls_key": str(key)}
    with LeaderProcess(etcd.endpoint, "small", cluster="small", max_workers="2", **tls) as leader, ExitStack() as stack:
        host, port = leader.link.rsplit(":", 1)
        for _ in range(100):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
        wait_for(lambda: turned_away(leader, "crowded") == 100 - 2 - STRANGERS, SECONDS, "the rest is sent away")
        assert leader.leads()


def turned_away(leader: LeaderProcess, reason: str) -> float:
    return leader.metric("links_refused_total", reason=reason)
