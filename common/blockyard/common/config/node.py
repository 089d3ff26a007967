"""Owns the settings that leaders and workers share, and the checks between them.

They stand in the file's [common] section or under BLOCKYARD_COMMON_; a role's own section may override each.
"""

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from blockyard.common.config.address import Address
from blockyard.common.config.kinds import Choice, Duration, Endpoints, Name, ReadableFile, Switch
from blockyard.common.config.settings import Derived, SettingError, setting

IDENTITY = "Identity"
ETCD = "etcd"
SECURITY = "Security of links between nodes"
TIMING = "Timing"
LOGGING = "Logging"

LOG_LEVELS = ("debug", "info", "warning", "error")


def host_node_id() -> str:
    """This host's name, with the characters that a node id cannot have replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "node"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """What every node of a cluster is told. Building one checks it."""

    cluster: str = setting(
        Name(), default="default", group=IDENTITY, help="Cluster to belong to; clusters can share one etcd."
    )
    node_id: str = setting(
        Name(),
        default=Derived(host_node_id, "host name"),
        group=IDENTITY,
        help="Name of this node, unique among the cluster's nodes of its role.",
    )
    etcd: tuple[Address, ...] = setting(
        Endpoints(), default=(), group=ETCD, help="Endpoints of the etcd cluster that leads to the leader."
    )
    etcd_ca: Path | None = setting(ReadableFile(), group=ETCD, help="CA certificate that etcd's is checked against.")
    etcd_cert: Path | None = setting(ReadableFile(), group=ETCD, help="This node's certificate for etcd.")
    etcd_key: Path | None = setting(ReadableFile(), group=ETCD, help="Private key of etcd_cert.")
    tls_ca: Path | None = setting(ReadableFile(), group=SECURITY, help="CA certificate of the cluster's nodes.")
    tls_cert: Path | None = setting(
        ReadableFile(), group=SECURITY, help="This node's certificate; its CN is the node's identity."
    )
    tls_key: Path | None = setting(ReadableFile(), group=SECURITY, help="Private key of tls_cert.")
    insecure: bool = setting(
        Switch(),
        default=False,
        group=SECURITY,
        help="Allow TCP without TLS between nodes and to etcd. Anyone who reaches the ports is then trusted.",
    )
    lease_ttl: float = setting(
        Duration(2, 300, whole_seconds=True),
        default=10.0,
        group=TIMING,
        help="How long etcd holds this node for alive after its last sign of life.",
    )
    log_level: str = setting(Choice(LOG_LEVELS), default="info", group=LOGGING, help="Least severe level to log.")

    def __post_init__(self) -> None:
        self._whole_trio("etcd_ca", "etcd_cert", "etcd_key")
        self._whole_trio("tls_ca", "tls_cert", "tls_key")
        if self.tls_cert is not None and self.insecure:
            raise SettingError("insecure", "true", "must be false where tls_cert is set: a link has TLS or has not")
        if self.etcd:
            self._secured_links()

    def _whole_trio(self, *names: str) -> None:
        missing = [name for name in names if getattr(self, name) is None]
        if 0 < len(missing) < len(names):
            raise SettingError(missing[0], None, f"must be set too: {', '.join(names)} only work together")

    def _secured_links(self) -> None:
        if self.insecure:
            return
        remote = [str(endpoint) for endpoint in self.etcd if not endpoint.is_loopback]
        if remote and self.etcd_cert is None:
            raise SettingError(
                "etcd",
                ",".join(map(str, self.etcd)),
                f"{remote[0]} is another machine, so set etcd_ca, etcd_cert and etcd_key, or insecure = true",
            )
        if self.tls_cert is None:
            raise SettingError(
                "tls_cert",
                None,
                "must be set, with tls_ca and tls_key, for links between nodes; or set insecure = true",
            )
