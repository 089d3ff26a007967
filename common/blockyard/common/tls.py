"""TLS between nodes: both sides show a certificate of the cluster's CA, and its CN is the node's identity.

Owns the contexts and the reading of the CN. Must never know who may do what.
"""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.common.errors import ConfigError


def client_context(ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    """For connecting. Host names are not compared: the caller compares `peer_name` with the node it wants."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, ca, cert, key)


def server_context(ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    """For listening; a peer without a certificate of the CA gets no connection."""
    return _context(ssl.PROTOCOL_TLS_SERVER, ca, cert, key)


def peer_name(transport: asyncio.BaseTransport) -> str:
    """CN of the peer's certificate; empty without one."""
    return certificate_name(transport.get_extra_info("peercert"))


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """CN of a certificate as `getpeercert` gives it; empty without one."""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return ""


def _context(side: int, ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(ca)
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files {ca}, {cert}, {key}: {error}; right: PEM files that belong together") from error
    return context
