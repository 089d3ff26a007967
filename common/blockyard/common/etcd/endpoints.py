"""Where etcd is and how to prove who we are. Owns the parsing of endpoint text and the reading of TLS files;
never opens a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from blockyard.common.errors import ConfigError

_RIGHT = "right: host:port, several separated by commas, e.g. 10.0.0.1:2379,10.0.0.2:2379"


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files. `ca` verifies etcd; `cert` and `key` (both or neither) say who we are, by the CN."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.cert is None) != (self.key is None):
            raise ConfigError(f"etcd TLS: cert is {self.cert} and key is {self.key}; right: both of them, or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=_read_pem("ca", self.ca),
            private_key=_read_pem("key", self.key) if self.key else None,
            certificate_chain=_read_pem("cert", self.cert) if self.cert else None,
        )


def parse_endpoints(text: str | Sequence[str], *, tls: bool) -> tuple[str, ...]:
    """Return `host:port` targets; raise ConfigError naming the first endpoint that cannot be one."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    targets = [_parse_one(part.strip(), tls) for part in parts]
    return tuple(dict.fromkeys(targets))


def _parse_one(endpoint: str, tls: bool) -> str:
    scheme, separator, _ = endpoint.partition("://")
    if separator and scheme not in ("http", "https"):
        raise ConfigError(f"etcd endpoint {endpoint!r}: unknown scheme {scheme!r}; {_RIGHT}")
    if separator and (scheme == "https") != tls:
        have = "TLS files are configured" if tls else "no TLS files are configured"
        raise ConfigError(f"etcd endpoint {endpoint!r}: {have}; right: https:// with etcd TLS files, http:// without")
    try:
        parts = urlsplit(endpoint if separator else f"//{endpoint}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"etcd endpoint {endpoint!r}: {error}; {_RIGHT}") from None
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if not host or not port or extra or any(char.isspace() for char in endpoint):
        raise ConfigError(f"etcd endpoint {endpoint!r}: not a host and a port of 1 to 65535; {_RIGHT}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_pem(name: str, path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"etcd TLS {name} {path}: {error.strerror}; right: a readable PEM file") from None
    if b"-----BEGIN " not in data:
        raise ConfigError(f"etcd TLS {name} {path}: holds no PEM block; right: a readable PEM file")
    return data
