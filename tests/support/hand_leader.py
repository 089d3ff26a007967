"""The leader's side of the cluster protocol spoken by hand, and its entry in a real etcd.

Owns a listening socket; each accepted link has deadlines. It says what a sound leader would not.
"""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import TypeVar

import msgspec

from blockyard.common.codec import Decoder
from blockyard.common.link import BlockingLink, LinkClosed
from blockyard.common.messages import cluster
from support.etcd_server import EtcdServer

SECONDS = 15.0

_M = TypeVar("_M", bound=msgspec.Struct)


class HandLeader:
    """Claims to lead cluster "test" as soon as it is made."""

    def __init__(self, etcd: EtcdServer, uid: bytes = b"u" * 16) -> None:
        self.uid = uid
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._sock.settimeout(SECONDS)
        self._etcd = etcd
        self._links: list[LeaderSide] = []
        etcd.ctl("put", "/blockyard/test/uid", uid.hex())
        self.claim()

    def claim(self) -> None:
        """Make the election key anew: a new epoch."""
        entry = {"node": "hand", "link": f"127.0.0.1:{self._sock.getsockname()[1]}", "http": "", "version": "test"}
        self._etcd.ctl("del", "/blockyard/test/leader")
        self._etcd.ctl("put", "/blockyard/test/leader", json.dumps(entry))
        found = json.loads(self._etcd.ctl("get", "/blockyard/test/leader", "-w", "json"))
        self.epoch = int(found["kvs"][0]["create_revision"])

    def accept(self) -> LeaderSide:
        """The next link that a worker opens."""
        sock, _ = self._sock.accept()
        link = LeaderSide(sock)
        self._links.append(link)
        return link

    def welcome(self, *, expect_seq: int = 0, epoch: int = 0, uid: bytes = b"") -> LeaderSide:
        """Take the next link in, as this leader or as the one named."""
        link = self.accept()
        link.send(cluster.LinkWelcome(cluster.PROTOCOL_MAX, "test", uid or self.uid, epoch or self.epoch, expect_seq))
        return link

    def __enter__(self) -> HandLeader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
        for link in self._links:
            link.close()


class LeaderSide:
    """One link with its worker's hello."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._link: BlockingLink[cluster.FromWorker] = BlockingLink(
            sock, Decoder(cluster.FromWorker), cluster.MAX_FRAME
        )
        self.hello = self.receive(cluster.WorkerHello)

    def send(self, message: msgspec.Struct) -> None:
        self._link.send(message, SECONDS)

    def receive(self, kind: type[_M]) -> _M:
        """The next message of this kind; Pings are answered, others passed over."""
        while True:
            message = self._link.receive(SECONDS)
            if isinstance(message, kind):
                return message
            if isinstance(message, cluster.Ping):
                self.send(cluster.Pong(message.number))

    def ended(self) -> bool:
        """Whether the worker ends this link within the deadline; nothing is answered meanwhile."""
        try:
            while True:
                self._link.receive(SECONDS)
        except LinkClosed:
            return True

    def close(self) -> None:
        self._link.close()
