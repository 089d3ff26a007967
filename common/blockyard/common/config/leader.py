"""Owns the leader's settings and the checks between them. It must never know how the leader uses them."""

from dataclasses import dataclass

from blockyard.common.config.address import Address
from blockyard.common.config.kinds import Count, HostPort, Switch
from blockyard.common.config.node import NodeConfig
from blockyard.common.config.settings import SettingError, setting

FACES = "Faces"
LIMITS = "Limits"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderConfig(NodeConfig):
    """All that a leader is told at its start."""

    listen: Address = setting(
        HostPort(), default=Address("127.0.0.1", 7501), group=FACES, help="Where workers connect to."
    )
    advertise: Address | None = setting(
        HostPort(reachable=True),
        unset="as listen",
        group=FACES,
        help="The address workers are told; needed where listen is a wildcard. Port 0: that of listen.",
    )
    http_listen: Address = setting(
        HostPort(),
        default=Address("127.0.0.1", 7500),
        group=FACES,
        help="Where the HTTP API, /metrics and /healthz are served.",
    )
    remote_orders: bool = setting(
        Switch(),
        default=False,
        group=FACES,
        help="Take prefetch, purge and drain over HTTP from other machines too. HTTP has no login.",
    )
    max_workers: int = setting(
        Count(1, 100_000),
        default=1024,
        group=LIMITS,
        help="Workers taken in at a time; further ones are ignored and refused.",
    )
    snapshots_at_once: int = setting(
        Count(1, 1024),
        default=8,
        group=LIMITS,
        help="Workers that may send all that they hold at a time, as after a change of leader; others wait their turn.",
    )
    match_max_keys: int = setting(
        Count(1, 1_000_000), default=4096, group=LIMITS, help="Keys that one /v1/match request may name."
    )

    def __post_init__(self) -> None:
        NodeConfig.__post_init__(self)
        if not self.etcd:
            raise SettingError("etcd", None, "must be set for a leader, such as 127.0.0.1:2379")
        if self.advertise is None and self.listen.is_wildcard:
            raise SettingError(
                "advertise",
                None,
                f"must be set to HOST:PORT as workers reach it, since listen is {self.listen}",
            )

    def advertised(self, bound_port: int) -> Address:
        """The address to tell workers, once the port listened on is known."""
        address = self.advertise or self.listen
        return Address(address.host, address.port or bound_port)

    def http_advertised(self, bound_port: int) -> Address:
        """The address to tell clients of the HTTP API, once the port listened on is known."""
        host = self.http_listen.host
        if self.http_listen.is_wildcard:
            host = self.advertised(bound_port).host
        return Address(host, bound_port)
