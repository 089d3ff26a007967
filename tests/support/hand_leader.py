"""The leader's side of the cluster protocol spoken by hand, and its entry in a real etcd.

Owns a listening socket and a thread per link, so that a worker is never kept waiting by a slow machine: it takes a
leader that says nothing for 5 s for dead. It says what a sound leader would not.
"""

from __future__ import annotations

import contextlib
import json
import queue
import select
import socket
import threading
import time
from typing import TypeVar

import msgspec

from blockyard.common.codec import Decoder, encode
from blockyard.common.errors import BlockyardError
from blockyard.common.link import BlockingLink, LinkTimeout
from blockyard.common.messages import cluster
from support.closing import Closing
from support.etcd_server import EtcdServer

SECONDS = 30.0
_LOOK = 0.02

ANY_PARTS = 1 << 20

_M = TypeVar("_M", bound=msgspec.Struct)


class HandLeader(Closing):
    """Claims to lead cluster "test" as soon as it is made. Until `welcome` or `refuse` it leaves hellos unanswered;
    from then on it answers each new link in the same way, until `hold`.
    """

    def __init__(self, etcd: EtcdServer, uid: bytes = b"u" * 16) -> None:
        self.uid = uid
        self._answer: msgspec.Struct | None = None
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._etcd = etcd
        self._links: list[LeaderSide] = []
        self._answered: queue.Queue[tuple[msgspec.Struct, LeaderSide]] = queue.Queue()
        self._closed = threading.Event()
        etcd.ctl("put", "/blockyard/test/uid", uid.hex())
        self.claim()
        threading.Thread(target=self._accept, daemon=True).start()

    def claim(self) -> None:
        """Make the election key anew: a new epoch, in which nobody has been answered yet."""
        self.hold()
        entry = {"node": "hand", "link": f"127.0.0.1:{self._sock.getsockname()[1]}", "http": "", "version": "test"}
        self._etcd.ctl("del", "/blockyard/test/leader")
        self._etcd.ctl("put", "/blockyard/test/leader", json.dumps(entry))
        found = json.loads(self._etcd.ctl("get", "/blockyard/test/leader", "-w", "json"))
        self.epoch = int(found["kvs"][0]["create_revision"])

    def hold(self) -> None:
        """Leave further hellos unanswered."""
        self._answer = None

    def welcome(
        self, *, expect_seq: int = 0, epoch: int = 0, uid: bytes = b"", protocol: int = cluster.PROTOCOL_MAX
    ) -> LeaderSide:
        """Take the next link in, as this leader or as the one named."""
        return self._answer_with(
            cluster.LinkWelcome(protocol, "test", uid or self.uid, epoch or self.epoch, expect_seq)
        )

    def refuse(self, code: str, detail: str) -> LeaderSide:
        """Turn the next link away."""
        return self._answer_with(cluster.LinkRefused(code, detail))

    def close(self) -> None:
        self._closed.set()
        # Closing alone would not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        for link in self._links:
            link.close()

    def _answer_with(self, answer: msgspec.Struct) -> LeaderSide:
        """Answer so from now on; the first link that got this very answer."""
        self._answer = answer
        deadline = time.monotonic() + SECONDS
        while True:
            given, link = self._answered.get(timeout=max(0.0, deadline - time.monotonic()))
            if given is answer:
                return link

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            link = LeaderSide(sock)
            self._links.append(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: LeaderSide) -> None:
        """Answer the hello as soon as there is an answer, then read until the end."""
        if not link.greeted():
            return
        while (answer := self._answer) is None:
            if self._closed.is_set() or link.hung_up():
                return
            time.sleep(_LOOK)
        link.send(answer)
        self._answered.put((answer, link))
        link.read()


class LeaderSide:
    """One link with its worker's hello. Pings are answered while it is not `silent`, snapshots are let in."""

    hello: cluster.WorkerHello

    def __init__(self, sock: socket.socket) -> None:
        self.silent = False
        self._link: BlockingLink[cluster.FromWorker] = BlockingLink(
            sock, Decoder(cluster.FromWorker), cluster.MAX_FRAME
        )
        self._sock = sock
        # Timeouts belong to a socket object: what sends must not share that of the thread that reads.
        self._sender = sock.dup()
        self._sender.settimeout(SECONDS)
        self._came: queue.Queue[cluster.FromWorker | None] = queue.Queue()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message; a worker that has gone meanwhile is no fault of the test."""
        self.send_raw(encode(message, cluster.MAX_FRAME))

    def send_raw(self, data: bytes) -> None:
        """Send any bytes."""
        with contextlib.suppress(OSError):
            self._sender.sendall(data)

    def receive(self, kind: type[_M]) -> _M:
        """The next message of this kind; others are passed over."""
        while True:
            message = self._came.get(timeout=SECONDS)
            assert message is not None, f"the worker ended the link; a {kind.__name__} was awaited"
            if isinstance(message, kind):
                return message

    def ended(self) -> bool:
        """Whether the worker ends this link within the deadline."""
        try:
            while self._came.get(timeout=SECONDS) is not None:
                pass
        except queue.Empty:
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sender.close()
        self._link.close()

    # For the thread that serves this link.

    def greeted(self) -> bool:
        """Take the hello."""
        try:
            message = self._link.receive(SECONDS)
        except BlockyardError:
            return False
        assert isinstance(message, cluster.WorkerHello), message
        self.hello = message
        return True

    def hung_up(self) -> bool:
        """Whether the worker has given up waiting for an answer."""
        try:
            readable, _, _ = select.select([self._sock], [], [], 0)
            return bool(readable) and not self._sock.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def read(self) -> None:
        """Take in what comes, until the link is over."""
        while True:
            try:
                message = self._link.receive(SECONDS)
            except LinkTimeout:
                continue
            except (BlockyardError, OSError):  # the latter where `close` was quicker
                self._came.put(None)
                return
            if isinstance(message, cluster.Ping) and not self.silent:
                self.send(cluster.Pong(message.number))
            if isinstance(message, cluster.SnapshotOffer):
                self.send(cluster.SnapshotCredit(message.seq, ANY_PARTS))
            self._came.put(message)
