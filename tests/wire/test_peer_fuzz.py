"""Hostile frames at a worker's peer port: as first words, and on connections that began rightly.

An honest peer reads from the worker all the time, and notices nothing.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.errors import BlockyardError
from blockyard.common.link import LinkClosed
from blockyard.common.messages import peer
from blockyard.worker.peers.channel import Channel
from support.attach_client import Engine, hello, key
from support.etcd_server import EtcdServer
from support.hostile_frames import OUT_OF_STEP, HostileFrames, members
from support.memory_use import private_bytes
from support.peer_end import PeerEnd
from support.worker_process import WorkerProcess

FRAMES = 20_000
MANY = 500_000
WARM_UP = 3_000
GROWTH = 16 << 20
"""Bytes that the worker's own memory may grow by after the warm-up. Measured: under 1 MiB for 20,000 frames."""

AREA = 8192
HELD = (1, 2, 3)
SHARE_OF_FIRST_WORDS = 0.05
SHARE_OF_HONEST = 0.01
SECONDS = 20.0
KINDS = members(peer.FromReader)


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with (
        EtcdServer() as etcd,
        WorkerProcess(cluster="test", etcd=etcd.endpoint, lease_ttl="20s", peer_listen="127.0.0.1:0") as process,
    ):
        process.wait_metric("etcd_registration", 1, state="registered")
        entry = json.loads(etcd.ctl("get", "/blockyard/test/workers/test-node", "--print-value-only"))
        process.peer_address = entry["peer"]  # type: ignore[attr-defined]
        yield process


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(FRAMES, marks=pytest.mark.timeout(600)),
        pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(5400)]),
    ],
)
def test_hostile_frames_are_counted_and_harm_nobody(worker: WorkerProcess, frames: int) -> None:
    with Engine(worker.socket) as engine, PeerEnd("honest", areas=1, area_bytes=AREA, uid=b"") as honest:
        engine.store({key(number): bytes([number]) * AREA for number in HELD})
        worker.wait_metric("checksum_backlog", 0)
        attacker = Attacker(worker, honest, frames)
        attacker.send(WARM_UP)
        before = private_bytes(worker.pid)
        attacker.send(frames - WARM_UP)
        after = private_bytes(worker.pid)
        attacker.leave()
        print(f"{frames} frames {dict(attacker.sent)}, {attacker.connections} connections")
        print(f"{(after - before) >> 10} KiB more")
        assert after - before < GROWTH
        assert attacker.honest > 0
    for reason in ("empty", "oversize", "malformed", "unexpected"):
        assert worker.metric("frames_refused_total", reason=reason) > 0, reason
    for reason in ("hello", "gone", "version"):
        assert worker.metric("peer_links_refused_total", reason=reason) > 0, reason
    worker.wait_metric("peer_connections", 0, side="serving")
    worker.wait_metric("peer_serving_chunks", 0)
    assert worker.get("/debug/invariants") == (200, '{"broken": null}')


class Attacker:
    """One connection at a time, opened again whenever the worker ends it, and first words on others."""

    def __init__(self, worker: WorkerProcess, honest: PeerEnd, seed: int) -> None:
        self.sent: Counter[str] = Counter()
        self.connections = 0
        self.honest = 0
        self._worker = worker
        self._reader = honest
        self._incarnation = int(worker.metric("incarnation"))
        self._address: str = worker.peer_address  # type: ignore[attr-defined]
        self._draw = random.Random(seed)
        self._frames = HostileFrames(seed, KINDS, peer.MAX_FRAME)
        self._open: Channel[peer.ToReader] | None = None

    def send(self, frames: int) -> None:
        """So many frames, and now and then a chunk for the honest peer beside them."""
        until = self.sent.total() + frames
        while self.sent.total() < until:
            if self._draw.random() < SHARE_OF_HONEST:
                self._read_honestly()
            if self._draw.random() < SHARE_OF_FIRST_WORDS:
                self._first_words()
            else:
                self._later_words()

    def leave(self) -> None:
        if self._open is not None:
            self._open.close()

    def _read_honestly(self) -> None:
        # Its slots are taken one after the other, and used again here: one chunk is read after the other.
        self._reader.start_over()
        order = self._reader.order(
            "test-node", self._address, HELD, incarnation=self._incarnation, world=hello().fingerprint
        )
        assert self._reader.results(order) == [bytes([number]) * AREA for number in HELD]
        self.honest += 1

    def _first_words(self) -> None:
        kind, data = self._frames.next()
        if self._draw.random() < 0.2:
            kind, data = "right", self._frames.right(peer.PeerHello)
        self.sent[kind] += 1
        channel = self._connect()
        try:
            channel.send_bytes(memoryview(data), _soon())
            if kind not in OUT_OF_STEP:
                channel.receive(_soon())
        except BlockyardError:
            pass
        finally:
            channel.close()

    def _later_words(self) -> None:
        channel = self._open or self._greet()
        self._open = channel
        kind, data = self._frames.next()
        if kind == "right" and self._draw.random() < 0.9:
            data = self._frames.right(peer.Fetch)
        self.sent[kind] += 1
        try:
            channel.send_bytes(memoryview(data), _soon())
            if kind not in OUT_OF_STEP:
                answer = channel.receive(_soon())
                assert isinstance(answer, peer.Fetched) and not answer.checksums, "nobody knows these keys"
                return
        except (LinkClosed, FrameRefused):
            pass
        channel.close()
        self._open = None

    def _connect(self) -> Channel[peer.ToReader]:
        host, _, port = self._address.rpartition(":")
        self.connections += 1
        return Channel(socket.create_connection((host, int(port)), SECONDS), Decoder(peer.ToReader))

    def _greet(self) -> Channel[peer.ToReader]:
        """The worker may be busy ending those that were before."""
        while True:
            channel = self._connect()
            said = peer.PeerHello(1, 1, "test", "test", b"", "attacker", 1, "test-node", self._incarnation)
            channel.send(said, _soon())
            answer = channel.receive(_soon())
            if isinstance(answer, peer.PeerWelcome):
                return channel
            assert getattr(answer, "code", None) == "busy", answer
            channel.close()
            time.sleep(0.01)


def _soon() -> float:
    return time.monotonic() + SECONDS
