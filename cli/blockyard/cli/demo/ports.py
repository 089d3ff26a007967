"""Owns the choice of free loopback ports."""

from __future__ import annotations

import contextlib
import secrets
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which the kernel takes the ports of outgoing connections: a server may bind its port
# only half a minute after it was chosen.
CANDIDATES = range(20_000, 32_000)
ATTEMPTS_PER_PORT = 100


def free_ports(count: int) -> list[int]:
    """`count` different ports that were free a moment ago; all are held until the last is found."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(count * ATTEMPTS_PER_PORT):
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            port = secrets.choice(CANDIDATES)
            with contextlib.suppress(OSError):
                listener.bind((LOOPBACK, port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f"found {len(ports)} of {count} free ports in {CANDIDATES}")
