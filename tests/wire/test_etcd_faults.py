"""What callers see when etcd is dead, hung, restarted or misconfigured."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from blockyard.common.errors import ConfigError
from blockyard.common.etcd import EtcdClient, EtcdTls, EtcdUnavailable, EtcdUncertain, parse_endpoints
from support.etcd_server import EtcdServer, unused_port
from support.polling import until
from support.tcp_forwarder import Forwarder

# Bounds are generous: they tell "returned by its deadline" from "hung", on a busy machine too.
_PATIENCE_S = 10.0


@pytest.mark.parametrize(
    ("text", "naming"),
    [
        ("", "''"),
        ("10.0.0.1", "'10.0.0.1'"),
        ("10.0.0.1:2379,nowhere:abc", "'nowhere:abc'"),
        ("host:99999", "'host:99999'"),
        ("host:0", "'host:0'"),
        ("ftp://host:2379", "'ftp'"),
        ("a b:2379", "'a b:2379'"),
        ("host:2379/v3", "'host:2379/v3'"),
        ("https://host:2379", "no TLS files"),
    ],
)
def test_bad_endpoint_text_is_one_clear_error(text: str, naming: str) -> None:
    with pytest.raises(ConfigError, match="right: ") as caught:
        EtcdClient(text)
    assert naming in str(caught.value)
    assert "\n" not in str(caught.value)


def test_endpoints_may_carry_a_scheme_be_ipv6_and_repeat() -> None:
    text = "http://a:1, b:2,[::1]:3,a:1"
    assert parse_endpoints(text, tls=False) == ("a:1", "b:2", "[::1]:3")
    assert parse_endpoints(["https://a:1"], tls=True) == ("a:1",)
    with pytest.raises(ConfigError, match="TLS files are configured"):
        parse_endpoints("http://a:1", tls=True)


def test_unreadable_tls_files_are_named(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(ConfigError, match=r"ca .*missing\.pem"):
        EtcdClient("a:1", tls=EtcdTls(missing))
    with pytest.raises(ConfigError, match=r"ca .*empty\.pem: holds no PEM block"):
        EtcdClient("a:1", tls=EtcdTls(empty))
    with pytest.raises(ConfigError, match="both of them, or neither"):
        EtcdClient("a:1", tls=EtcdTls(empty, cert=empty))


async def test_with_nobody_there_the_deadline_ends_the_wait() -> None:
    endpoint = f"127.0.0.1:{unused_port()}"
    async with EtcdClient(endpoint, timeout_s=0.5) as client, asyncio.timeout(_PATIENCE_S):
        with pytest.raises(EtcdUnavailable, match=endpoint) as caught:
            await client.keys.put("k", b"v")
    assert not isinstance(caught.value, EtcdUncertain)


async def test_one_dead_endpoint_of_two_costs_nothing(etcd: EtcdServer) -> None:
    endpoints = [f"127.0.0.1:{unused_port()}", etcd.endpoint]
    async with EtcdClient(endpoints) as client, client.watch("two/", prefix=True) as events:
        async with asyncio.timeout(_PATIENCE_S):
            await client.keys.put("two/a", b"v")
            assert (await client.keys.list("two/")).first is not None
            lease = await client.leases.grant(10)
            await client.leases.keep_alive(lease.id)
            await anext(events)


async def test_a_hung_etcd_costs_each_call_its_deadline_and_no_more(etcd: EtcdServer) -> None:
    async with EtcdClient(etcd.endpoint) as client, asyncio.timeout(3 * _PATIENCE_S):
        lease = await client.leases.grant(30)
        etcd.freeze()
        try:
            with pytest.raises(EtcdUnavailable):
                await client.keys.get("k", timeout_s=0.3)
            with pytest.raises(EtcdUncertain):
                await client.keys.put("k", b"v", timeout_s=0.3)
            with pytest.raises(EtcdUncertain):
                await client.keys.create_if_absent("k", b"v", timeout_s=0.3)
            with pytest.raises(EtcdUnavailable):
                await client.leases.keep_alive(lease.id, timeout_s=0.3)
        finally:
            etcd.thaw()
        await client.keys.put("k", b"after")
        await client.leases.keep_alive(lease.id)


async def test_a_hung_endpoint_leaves_time_for_the_next(etcd: EtcdServer) -> None:
    with EtcdServer() as other:
        other.freeze()
        async with EtcdClient([other.endpoint, etcd.endpoint], timeout_s=2) as client:
            async with asyncio.timeout(_PATIENCE_S):
                await client.keys.list("any/")
                await client.keys.put("any", b"v")
        other.thaw()


async def test_a_killed_etcd_is_used_again_once_it_is_back() -> None:
    with EtcdServer() as etcd:
        async with EtcdClient(etcd.endpoint, timeout_s=_PATIENCE_S) as client:
            await client.keys.put("kept", b"v")
            etcd.kill()
            with pytest.raises(EtcdUnavailable):
                await client.keys.get("kept", timeout_s=0.3)
            early = asyncio.create_task(client.keys.get("kept"))
            await asyncio.to_thread(etcd.start)
            for answer in (await early, await client.keys.get("kept")):
                assert answer is not None
                assert answer.value == b"v"


async def test_a_put_whose_answer_was_lost_is_not_sent_twice(etcd: EtcdServer) -> None:
    async with (
        Forwarder(etcd.endpoint) as forwarder,
        EtcdClient(etcd.endpoint) as other,
        EtcdClient(forwarder.endpoint, timeout_s=_PATIENCE_S) as client,
    ):
        await client.keys.get("lost/put")
        forwarder.swallow_answers()
        putting = asyncio.create_task(client.keys.put("lost/put", b"v"))
        await until(lambda: exists(other, "lost/put"))
        await forwarder.cut()
        await forwarder.open()
        with pytest.raises(EtcdUncertain):
            await putting
        kv = await client.keys.get("lost/put")
        assert kv is not None
        assert kv.version == 1


async def test_a_creation_whose_answer_was_lost_is_known_to_be_ours(etcd: EtcdServer) -> None:
    async with (
        Forwarder(etcd.endpoint) as forwarder,
        EtcdClient(etcd.endpoint) as other,
        EtcdClient(forwarder.endpoint, timeout_s=_PATIENCE_S) as client,
    ):
        lease = await client.leases.grant(60)
        forwarder.swallow_answers()
        creating = asyncio.create_task(client.keys.create_if_absent("lost/new", b"v", lease=lease.id))
        await until(lambda: exists(other, "lost/new"))
        await forwarder.cut()
        await forwarder.open()
        assert await creating == (True, await client.keys.get("lost/new"))
        assert not (await client.keys.create_if_absent("lost/new", b"v", lease=lease.id))[0]


async def exists(client: EtcdClient, key: str) -> bool:
    return await client.keys.get(key) is not None


async def test_a_caller_can_leave_at_any_time(etcd: EtcdServer) -> None:
    async with EtcdClient(etcd.endpoint) as client:
        await client.keys.put("k", b"v")
        etcd.freeze()
        try:
            begun = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.keys.get("k", timeout_s=60), 0.2)
            assert time.monotonic() - begun < 30
        finally:
            etcd.thaw()
        assert await client.keys.get("k") is not None
