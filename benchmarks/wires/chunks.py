"""The chunks that all subjects read, and what is told of each pass. Owns the sizes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from blockyard.common.tls import client_context, server_context
from blockyard.worker.pool import HostPool

WORLD = b"w" * 32
CONNECTIONS = 2


@dataclass(frozen=True)
class Chunks:
    """`count` chunks of one area, from the pool's beginning on. `tls` names CA, certificate and key, or is empty."""

    count: int
    size: int
    tls: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return self.count * self.size

    def key(self, number: int) -> bytes:
        return number.to_bytes(32, "big")

    def pool(self) -> HostPool:
        return HostPool(b"b" * 16, self.total_bytes, self.size, self.count)

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext] | tuple[None, None]:
        """For being connected to, and for connecting."""
        if not self.tls:
            return None, None
        ca, cert, key = map(Path, self.tls)
        return server_context(ca, cert, key), client_context(ca, cert, key)


class Pass(NamedTuple):
    """All chunks read once: seconds, and CPU-seconds of both sides."""

    wall: float
    cpu: float


class Reader(Protocol):
    """Reads every chunk once, each into its own place."""

    def read(self) -> None: ...
    def close(self) -> None: ...
