"""A worker reduced to its link and its registration: real sockets and a real etcd, claims as the test wants them.

Owns one blocking link. The registration is a plain key, put and deleted by etcdctl.
"""

from __future__ import annotations

import json
import socket
import ssl
from types import TracebackType
from typing import TypeVar

from blockyard.common.codec import Decoder
from blockyard.common.link import BlockingLink
from blockyard.common.messages import cluster as wire
from support.etcd_server import EtcdServer
from support.leader_world import WORLD, hello

M = TypeVar("M", bound=wire.ToWorker)

_TIMEOUT_S = 15.0


def register(etcd: EtcdServer, node: str, *, cluster: str = "test", **more: object) -> int:
    """Put a registration; returns its incarnation."""
    name = f"/blockyard/{cluster}/workers/{node}"
    entry = {"node": node, "boot_id": (b"b" * 16).hex(), "version": "0.0.1", "pool_bytes": 4096} | more
    etcd.ctl("put", name, json.dumps(entry))
    return int(json.loads(etcd.ctl("get", name, "-w", "json"))["kvs"][0]["create_revision"])


def unregister(etcd: EtcdServer, node: str, *, cluster: str = "test") -> None:
    etcd.ctl("del", f"/blockyard/{cluster}/workers/{node}")


class RawWorker:
    """`with RawWorker(leader.link) as worker:` is a connection that has not said hello."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._link: BlockingLink[wire.ToWorker] = BlockingLink(self.socket, Decoder(wire.ToWorker), wire.MAX_FRAME)
        self._seq = 1

    def __enter__(self) -> RawWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()

    def greet(self, node: str, incarnation: int, **fields: object) -> wire.ToWorker:
        """Say hello; returns the first answer."""
        self.send(hello(node, incarnation, **{"cluster_uid": b"", **fields}))
        return self.receive()

    def send(self, *messages: wire.FromWorker) -> None:
        for message in messages:
            self._link.send(message, _TIMEOUT_S)

    def send_bytes(self, data: bytes) -> None:
        """Anything at all."""
        self.socket.settimeout(_TIMEOUT_S)
        self.socket.sendall(data)

    def receive(self) -> wire.ToWorker:
        return self._link.receive(_TIMEOUT_S)

    def await_kind(self, kind: type[M]) -> M:
        """The next message of this kind; others before it are passed over."""
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message

    def hold(self, *changes: wire.Change) -> None:
        """Claim these in the next delta, and wait until it is acknowledged."""
        self.send(wire.Delta(self._seq, [WORLD], list(changes)))
        self._seq += 1
        while self.await_kind(wire.Ack).seq < self._seq - 1:
            pass
