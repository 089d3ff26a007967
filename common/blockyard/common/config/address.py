"""Owns the value "host:port". It must never resolve a name or open a socket."""

import ipaddress
import re
from dataclasses import dataclass

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]{1,253}", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A TCP address. Port 0 asks for any free port, which is only good for listening."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if no other machine is reached by it."""
        if self.host == "localhost":
            return True
        address = _ip(self.host)
        return address is not None and address.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """True for "all interfaces": one can listen there, but no one can connect to it."""
        address = _ip(self.host)
        return address is not None and address.is_unspecified


def parse_address(text: str) -> Address:
    """The address in "host:port" or "[v6]:port"; ValueError if it is none."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError(text)
    if bracketed:
        return Address(str(ipaddress.IPv6Address(host)), int(port))
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(text)
    return Address(host, int(port))


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
