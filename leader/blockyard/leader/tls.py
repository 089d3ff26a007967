"""TLS of the workers' links: who may connect, and as whom.

Owns the server's context; must never know the links.
"""

import asyncio
import ssl

from blockyard.common.config import LeaderConfig
from blockyard.common.errors import ConfigError


def server_context(config: LeaderConfig) -> ssl.SSLContext | None:
    """Mutual TLS from the configured files; None where the configuration allows plain TCP."""
    if config.tls_ca is None or config.tls_cert is None or config.tls_key is None:
        if not config.insecure:
            raise ConfigError("tls_cert is not set; right: tls_ca, tls_cert and tls_key, or insecure = true")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        context.load_verify_locations(config.tls_ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls_cert {config.tls_cert}, tls_key {config.tls_key} or tls_ca {config.tls_ca} "
            f"cannot be used: {error}"
        ) from error
    return context


def peer_name(writer: asyncio.StreamWriter) -> str | None:
    """The common name of the peer's certificate; None on a plain link."""
    certificate = writer.get_extra_info("peercert")
    if not certificate:
        return None
    for part in certificate["subject"]:
        for name, value in part:
            if name == "commonName":
                return str(value)
    return ""
