"""Settings that are right alone and wrong together, and the default that depends on the host."""

import socket
from pathlib import Path
from typing import Any

import pytest

from blockyard.common.config import Address, LeaderConfig, SettingError, WorkerConfig
from blockyard.common.config.load import resolve
from blockyard.common.config.node import host_node_id
from blockyard.common.config.settings import settings_of
from blockyard.common.config.units import GIB, KIB, MIB

LOCAL = (Address("127.0.0.1", 2379),)
REMOTE = (Address("127.0.0.1", 2379), Address("etcd-2", 2379))
HERE = Address("127.0.0.1", 7511)
FILE = Path("/etc/hostname")
TLS: dict[str, Any] = {"tls_ca": FILE, "tls_cert": FILE, "tls_key": FILE}
ETCD_TLS: dict[str, Any] = {"etcd_ca": FILE, "etcd_cert": FILE, "etcd_key": FILE}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"slab_size": 2 * GIB}, "slab_size = 2GiB: must not be larger than host_pool, 1GiB"),
        ({"slab_size": MIB, "min_slot": 2 * MIB}, "min_slot = 2MiB: must not be larger than slab_size, 1MiB"),
        (
            {"host_pool": 1000 * MIB},
            "host_pool = 1000MiB: must be a multiple of slab_size, 32MiB; 992MiB or 1GiB",
        ),
        (
            {"lease_ttl": 2.0, "delta_interval": 3.0},
            "delta_interval = 3s: must be shorter than lease_ttl, 2s",
        ),
        ({"tls_ca": FILE}, "tls_cert: must be set too: tls_ca, tls_cert, tls_key only work together"),
        ({"tls_cert": FILE, "tls_key": FILE}, "tls_ca: must be set too"),
        ({"etcd_key": FILE}, "etcd_ca: must be set too: etcd_ca, etcd_cert, etcd_key only work together"),
        ({"insecure": True, **TLS}, "insecure = true: must be false where tls_cert is set"),
        ({"etcd": LOCAL}, "tls_cert: must be set, with tls_ca and tls_key"),
        ({"peer_listen": HERE}, "peer_listen = 127.0.0.1:7511: must be off without etcd"),
        ({"peer_advertise": HERE}, "peer_advertise = 127.0.0.1:7511: must be unset while peer_listen is off"),
        (
            {"etcd": LOCAL, "insecure": True, "peer_listen": Address("0.0.0.0", 7511)},
            "peer_advertise: must be set to HOST:PORT as other workers reach it, since peer_listen is 0.0.0.0:7511",
        ),
        ({"etcd": REMOTE, **TLS}, "etcd = 127.0.0.1:2379,etcd-2:2379: etcd-2:2379 is another machine"),
    ],
)
def test_a_worker_refuses(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError) as caught:
        WorkerConfig(**given)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    "given",
    [
        {"host_pool": 32 * MIB},
        {"host_pool": 3 * MIB, "slab_size": MIB, "min_slot": 4 * KIB},
        {"etcd": LOCAL, **TLS},
        {"etcd": LOCAL, "insecure": True},
        {"etcd": REMOTE, "insecure": True},
        {"etcd": REMOTE, "insecure": True, **ETCD_TLS},
        {"etcd": REMOTE, **TLS, **ETCD_TLS},
        {"etcd": LOCAL, "insecure": True, "peer_listen": HERE},
        {"etcd": LOCAL, "insecure": True, "peer_listen": Address("::", 0), "peer_advertise": Address("node-1", 0)},
    ],
)
def test_a_worker_takes(given: dict[str, Any]) -> None:
    config = WorkerConfig(**given)
    assert {name: getattr(config, name) for name in given} == given


def leader(**given: Any) -> LeaderConfig:
    return LeaderConfig(**{"etcd": LOCAL, "insecure": True, **given})


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        (Address("127.0.0.1", 0), None, "127.0.0.1:4711"),
        (Address("0.0.0.0", 0), Address("node-1", 0), "node-1:4711"),
        (Address("0.0.0.0", 7511), Address("node-1", 17511), "node-1:17511"),
    ],
)
def test_a_worker_tells_others_the_port_it_got(listen: Address, advertise: Address | None, told: str) -> None:
    config = WorkerConfig(etcd=LOCAL, insecure=True, peer_listen=listen, peer_advertise=advertise)
    assert config.serves_peers
    assert str(config.peer_advertised(listen.port or 4711)) == told


@pytest.mark.parametrize("word", ["off", "", " off "])
def test_peers_can_be_switched_off(word: str) -> None:
    config = resolve(WorkerConfig, "worker", {"insecure": "true", "peer_listen": word}, None, {}).build()
    assert not config.serves_peers


def test_a_leader_needs_etcd() -> None:
    with pytest.raises(SettingError, match=r"^etcd: must be set for a leader"):
        leader(etcd=())


def test_a_leader_on_all_interfaces_needs_an_address_to_tell() -> None:
    anywhere = Address("0.0.0.0", 7501)
    with pytest.raises(SettingError, match=r"^advertise: must be set to HOST:PORT .* listen is 0\.0\.0\.0:7501"):
        leader(listen=anywhere)
    assert leader(listen=anywhere, advertise=Address("node-1", 0)).advertised(7501) == Address("node-1", 7501)


def test_a_leader_tells_the_port_it_got() -> None:
    config = leader(listen=Address("127.0.0.1", 0), http_listen=Address("::", 0))
    assert config.advertised(4711) == Address("127.0.0.1", 4711)
    assert config.http_advertised(4712) == Address("127.0.0.1", 4712)
    assert leader(http_listen=Address("127.0.0.2", 0)).http_advertised(4713) == Address("127.0.0.2", 4713)
    assert leader(advertise=Address("node-1", 9)).advertised(4711) == Address("node-1", 9)


@pytest.mark.parametrize(("host", "node"), [("gpu 7/a", "gpu-7-a"), ("", "node"), ("x" * 80, "x" * 64)])
def test_a_node_is_named_after_its_host(monkeypatch: pytest.MonkeyPatch, host: str, node: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert host_node_id() == node


@pytest.mark.parametrize("config", [WorkerConfig, LeaderConfig])
def test_every_default_is_a_value_that_its_kind_takes(config: type) -> None:
    for setting in settings_of(config):
        value = setting.default()
        if value is not None and value != ():
            assert setting.kind.parse(setting.kind.show(value)) == value, setting.name
        assert setting.help.endswith("."), setting.name


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(AttributeError):
        WorkerConfig().host_pool = 1  # type: ignore[misc]
