"""Mutual TLS to a real etcd: who has a certificate of its CA is let in, and nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.common.etcd import EtcdClient, EtcdTls, EtcdUnavailable, KeyPut
from support.authority import Authority
from support.etcd_server import EtcdServer, ServerTls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def etcd(authority: Authority) -> Iterator[EtcdServer]:
    with EtcdServer(tls=ServerTls(authority.ca, *authority.issue("etcd"))) as server:
        yield server


async def test_a_certificate_of_the_authority_is_let_in(etcd: EtcdServer, authority: Authority) -> None:
    tls = EtcdTls(authority.ca, *authority.issue("worker-1"))
    async with (
        EtcdClient(f"https://{etcd.endpoint}", tls=tls) as client,
        client.watch("t/", prefix=True) as events,
    ):
        await anext(events)
        await client.keys.put("t/a", b"v")
        assert isinstance(await anext(events), KeyPut)


async def test_nobody_else_is_let_in(etcd: EtcdServer, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "theirs")
    others = {
        "no certificate": EtcdTls(authority.ca),
        "a stranger's certificate": EtcdTls(authority.ca, *stranger.issue("worker-1")),
        "a server that is not ours": EtcdTls(stranger.ca, *authority.issue("worker-2")),
        "no TLS at all": None,
    }
    for name, tls in others.items():
        async with EtcdClient(etcd.endpoint, tls=tls) as client:
            with pytest.raises(EtcdUnavailable):
                await client.keys.get("t/a", timeout_s=0.5)
                pytest.fail(f"let in: {name}")
