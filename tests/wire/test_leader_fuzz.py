"""Hostile frames at the leader's port for workers, and hostile requests at both HTTP servers.

Beside the attack an honest worker's link stands and its claims are shown.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach
from blockyard.common.messages import cluster as wire
from support.attach_client import Engine, key
from support.etcd_server import EtcdServer
from support.hostile_frames import OUT_OF_STEP, HostileFrames, members
from support.hostile_http import HostileHttp
from support.leader_process import LeaderProcess
from support.leader_world import change, snapshot
from support.leader_world import key as claimed
from support.memory_use import private_bytes
from support.raw_worker import RawWorker, register
from support.worker_process import WorkerProcess

COUNTS = [
    pytest.param(20_000, marks=pytest.mark.timeout(600)),
    pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(5400)]),
]
WARM_UP = 3_000
GROWTH = 16 << 20
"""Bytes that a process's own memory may grow by after the warm-up. Measured: 0.2 MiB for 6,000 frames or requests."""

PER_LINK = 40
PER_BATCH = 25
LAST_WORDS = 2
_ANSWER_S = 20.0
_GLANCE_S = 0.02
"""Half a request is answered with nothing: after so long we leave."""

REFUSED = {400, 403, 404, 405, 411, 413, 414, 417, 431, 501, 503, 505}


@pytest.fixture
def leader(etcd: EtcdServer) -> Iterator[LeaderProcess]:
    with LeaderProcess(etcd.endpoint, "a") as process:
        process.wait_leads()
        yield process


def refused_frames(leader: LeaderProcess) -> dict[str, float]:
    """How many frames the leader has refused, by reason."""
    return {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(leader.get("/metrics")[1])
        for sample in family.samples
        if sample.name == "blockyard_leader_frames_refused_total"
    }


@pytest.mark.parametrize("frames", COUNTS)
def test_hostile_frames_of_workers(etcd: EtcdServer, leader: LeaderProcess, frames: int) -> None:
    honest = register(etcd, "honest")
    attacker = FrameAttack(leader, register(etcd, "attacker"), frames)
    with RawWorker(leader.link) as worker:
        assert isinstance(worker.greet("honest", honest), wire.LinkWelcome)
        worker.send(*snapshot(0, change(1), change(2)))
        worker.hold(change(3))
        attacker.send(WARM_UP, worker)
        before = private_bytes(leader.pid)
        attacker.send(frames - WARM_UP, worker)
        after = private_bytes(leader.pid)
        worker.hold(change(1, 0))
        for number, holders in ((1, []), (2, ["honest"]), (3, ["honest"])):
            answer = leader.get(f"/v1/where?key={claimed(number).hex()}")[1]
            assert [one["node"] for one in answer["holders"] if one["node"] == "honest"] == holders
    print(f"{frames} frames {dict(attacker.sent)}, {(after - before) >> 10} KiB more")
    assert after - before < GROWTH
    counted = refused_frames(leader)
    assert all(counted[reason] > 0 for reason in ("empty", "oversize", "malformed", "unexpected")), counted
    assert leader.get("/debug/invariants") == (200, {"broken": None})
    assert "Traceback" not in leader.log()


class FrameAttack:
    """One node's links, some of which begin with a right hello."""

    def __init__(self, leader: LeaderProcess, incarnation: int, seed: int) -> None:
        self.sent: Counter[str] = Counter()
        self._leader = leader
        self._incarnation = incarnation
        self._frames = HostileFrames(seed, members(wire.FromWorker), wire.MAX_FRAME)
        self._links = 0

    def send(self, frames: int, honest: RawWorker) -> None:
        """So many frames; the honest worker lives on meanwhile."""
        until = self.sent.total() + frames
        while self.sent.total() < until:
            assert self._leader.alive, self._leader.log()[-3000:]
            with suppress(OSError, LinkClosed), RawWorker(self._leader.link) as link:
                self._links += 1
                if self._links % 4:
                    link.greet("attacker", self._incarnation)
                self._attack(link)
            if self._links % 20 == 0:
                honest.send(wire.Ping(self._links))
                honest.await_kind(wire.Pong)

    def _attack(self, link: RawWorker) -> None:
        for _ in range(PER_LINK):
            kind, data = self._frames.next()
            self.sent[kind] += 1
            link.send_bytes(data)
            if kind in OUT_OF_STEP:
                return


@pytest.mark.parametrize("requests", COUNTS)
def test_hostile_requests_to_a_leader(leader: LeaderProcess, requests: int) -> None:
    check_http(leader.http, leader.pid, requests)
    assert leader.get("/healthz")[0] == 200
    assert leader.get("/debug/invariants") == (200, {"broken": None})
    assert "Traceback" not in leader.log()


@pytest.mark.parametrize("requests", COUNTS)
def test_hostile_requests_to_a_worker(requests: int) -> None:
    with WorkerProcess() as worker, Engine(worker.socket) as engine:
        chunks = {key(number): bytes([number]) * 8192 for number in range(8)}
        engine.store(chunks)

        def honest() -> None:
            assert engine.load(engine.acquire(list(chunks)), list(chunks)) == list(chunks.values())
            engine.scheduler.send(attach.Finish("r"))

        check_http(worker.http, worker.pid, requests, honest)
        assert worker.get("/debug/invariants") == (200, '{"broken": null}')
        assert "Traceback" not in worker.log


def check_http(address: str, pid: int, requests: int, honest: Callable[[], None] = lambda: None) -> None:
    """Every answer is a right one or a refusal, and memory is bounded."""
    attack = HttpAttack(address, requests)
    attack.send(WARM_UP, honest)
    before = private_bytes(pid)
    attack.send(requests - WARM_UP, honest)
    after = private_bytes(pid)
    print(f"{attack.sent} requests, {dict(attack.answers)}, {(after - before) >> 10} KiB more")
    assert attack.answers.keys() <= REFUSED | {200}
    assert attack.answers[200] and attack.answers[400] and attack.answers[404] and attack.answers[405]
    assert after - before < GROWTH


class HttpAttack:
    """Batches of whole requests, and connections that end in nonsense."""

    def __init__(self, address: str, seed: int) -> None:
        host, port = address.rsplit(":", 1)
        self.sent = 0
        self.answers: Counter[int] = Counter()
        self._address = host, int(port)
        self._requests = HostileHttp(seed)
        self._seed = seed

    def send(self, requests: int, honest: Callable[[], None]) -> None:
        """So many requests."""
        until = self.sent + requests
        while self.sent < until:
            self._converse(self._requests.batch(PER_BATCH))
            self.sent += PER_BATCH
            for _ in range(LAST_WORDS):
                self._converse(self._requests.last_words(), _GLANCE_S)
                self.sent += 1
            honest()

    def _converse(self, data: bytes, patience: float = _ANSWER_S) -> None:
        """Say all, then listen as long as we like, or until the server ends it, maybe while we still speak."""
        said = b""
        with socket.create_connection(self._address, timeout=_ANSWER_S) as connection:
            with suppress(ConnectionError):
                connection.sendall(data)
            connection.settimeout(patience)
            with suppress(ConnectionError, TimeoutError):
                while part := connection.recv(1 << 16):
                    said += part
        self.answers.update(int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", said))
