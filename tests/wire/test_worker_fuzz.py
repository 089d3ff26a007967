"""Hostile frames at the worker's Unix socket: as first words, and in sessions that began rightly.

An honest engine works beside the attack all the time, and notices nothing.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach
from support.attach_client import Session, hello, key, scheduler_hello
from support.engine_side import EngineSide, key_of, wait_until
from support.hostile_frames import OUT_OF_STEP, HostileFrames, members
from support.memory_use import private_bytes
from support.serving import HIT, request
from support.worker_books import check_idle
from support.worker_process import WorkerProcess

FRAMES = 20_000
MANY = 1_000_000
WARM_UP = 3_000
GROWTH = 16 << 20
"""Bytes that the worker's own memory may grow by after the warm-up: its books are bounded (sessions, worlds, ghosts,
engines whose numbers it shows), the allocator has its slack. Measured: 0.4 MiB for 20,000 frames.
"""

ATTACKERS = 4
"""At the same time: one alone would mostly wait for answers."""

PAUSE = 0.05
"""Seconds between requests of the honest engine."""

SHARE_OF_FIRST_WORDS = 0.1
HONEST = [key_of(1), key_of(2)]
RANK_KINDS = (attach.Resolve, attach.StoreDone, attach.LoadDone, attach.Bye, attach.EngineCounters)
KINDS = members(attach.FromEngine)
FIRST_SEQ = 2**52
"""Questions are numbered from here on: no frame of the attack has such a number, so that no answer is mistaken."""

QUESTIONS = {
    "rank": attach.Resolve(0, 0, "load", 0, key(0), 0),
    "scheduler": attach.Acquire(0, "r", [attach.Run(0, 0, b"", key(0))]),
}


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    limits = {"pin_ttl": "500ms", "fill_deadline": "500ms", "max_pins_per_engine": "64"}
    with WorkerProcess(host_pool="32MiB", **limits) as process:
        yield process


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(FRAMES, marks=pytest.mark.timeout(600)),
        pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(5400)]),
    ],
)
def test_hostile_frames_are_counted_and_harm_nobody(worker: WorkerProcess, frames: int) -> None:
    attack = Attack(worker, frames)
    with EngineSide(worker.socket, verify="always") as honest:
        honest.wait_attached()
        attack.send(WARM_UP, honest)
        before = private_bytes(worker.pid)
        attack.send(frames - WARM_UP, honest)
        after = private_bytes(worker.pid)
        attack.leave()
        print(f"{attack.sent.total()} frames {dict(attack.sent)}, {(after - before) >> 10} KiB more")
        print(f"beside them {dict(attack.met)}")
        assert after - before < GROWTH
        assert attack.met[HIT] > attack.met.total() / 2
        # A machine that is busy may make it wait too long; nothing else may befall it.
        assert {*honest.rank.detachments, *honest.scheduler.detachments} <= {"timeout"}
        wait_until(lambda: request(honest, HONEST) == HIT, "a hit after the attack")
        worker.wait_metric("sessions", 2)
    check_counted(worker)
    worker.wait_metric("sessions", 0)
    check_idle(worker)
    assert worker.get("/debug/invariants") == (200, '{"broken": null}')


def check_counted(worker: WorkerProcess) -> None:
    """Each kind of refusal has been counted, and no number of an engine has spoilt a metric."""
    for reason in ("empty", "oversize", "malformed", "unknown"):
        assert worker.metric("frames_refused_total", reason=reason) > 0, reason
    for code in ("malformed", "pidfd", "gone"):
        assert worker.metric("handshakes_refused_total", reason=code) > 0, code
    families = list(text_string_to_metric_families(worker.get("/metrics")[1]))
    assert all(math.isfinite(sample.value) for family in families for sample in family.samples)


class Attack:
    """Some attackers at once, and requests of an honest engine beside them."""

    def __init__(self, worker: WorkerProcess, seed: int) -> None:
        self.met: Counter[str] = Counter()
        self._attackers = [Attacker(worker, f"attacker-{number}", seed + number) for number in range(ATTACKERS)]

    @property
    def sent(self) -> Counter[str]:
        return sum((one.sent for one in self._attackers), Counter())

    def send(self, frames: int, honest: EngineSide) -> None:
        """So many frames, and requests until they are sent."""
        with ThreadPoolExecutor(ATTACKERS) as threads:
            running = [threads.submit(one.send, frames // ATTACKERS) for one in self._attackers]
            while wait(running, PAUSE).not_done:
                self.met[request(honest, HONEST)] += 1
            for one in running:
                one.result()

    def leave(self) -> None:
        for one in self._attackers:
            one.leave()


class Attacker:
    """One engine's two sessions, opened again whenever the worker ends them, and first words on other connections."""

    def __init__(self, worker: WorkerProcess, name: str, seed: int) -> None:
        self.sent: Counter[str] = Counter()
        self._name = name
        self._worker = worker
        self._draw = random.Random(seed)
        self._frames = HostileFrames(seed, KINDS, attach.MAX_FRAME)
        self._open: dict[str, Session] = {}
        self._before: dict[str, tuple[int, bytes]] = {}
        self._questions = itertools.count(FIRST_SEQ)

    def send(self, frames: int) -> None:
        """So many frames."""
        until = self.sent.total() + frames
        while self.sent.total() < until:
            if self._draw.random() < SHARE_OF_FIRST_WORDS:
                self._first_words()
            else:
                self._in_session()

    def leave(self) -> None:
        """End well: whatever was being copied is not any more."""
        for role in list(self._open):
            self._close(role)
        self._attach()
        for role, session in list(self._open.items()):
            session.send(attach.Bye())
            session.ended()
            self._close(role)

    def _first_words(self) -> None:
        """As a rule anything but a Hello, with a pidfd, without one or with something else."""
        kind, data = self._frames.next()
        if self._draw.random() < 0.2:
            kind, data = "right", self._frames.right(attach.Hello)
        self.sent[kind] += 1
        descriptors = [os.pidfd_open(os.getpid())] if self._draw.random() < 0.8 else []
        with socket.socket(socket.AF_UNIX) as sock:
            # A scheduler's Hello is answered when its ranks are there, which is never.
            sock.settimeout(0.01 if kind in ("right", "mutated") else 10.0)
            sock.connect(str(self._worker.socket))
            try:
                socket.send_fds(sock, [data], descriptors)
                if kind not in OUT_OF_STEP:
                    _, received, _, _ = socket.recv_fds(sock, 1 << 16, 4)
                    descriptors += received
            except OSError:
                pass  # refused while it was being sent
        for descriptor in descriptors:
            os.close(descriptor)

    def _in_session(self) -> None:
        if len(self._open) < 2:
            self._attach()
        role = self._draw.choice(("rank", "scheduler"))
        session = self._open.get(role)
        if session is None:
            return
        kind, data = self._frames.next()
        if kind == "right" and self._draw.random() < 0.9:
            own = [one for one in KINDS if (one in RANK_KINDS) == (role == "rank") and one is not attach.Bye]
            data = self._frames.right(*own)
        self.sent[kind] += 1
        try:
            session.sock.settimeout(10)
            session.sock.sendall(data)
            if kind not in OUT_OF_STEP:
                self._ask(session, role)
        except (OSError, LinkClosed):
            kind = "raw"
        if kind in OUT_OF_STEP:
            self._close(role)

    def _ask(self, session: Session, role: str) -> None:
        """Whether the session goes on is known once its next question is answered."""
        seq = next(self._questions)
        session.send(msgspec.structs.replace(QUESTIONS[role], seq=seq))
        while getattr(session.link.receive(10), "seq", None) != seq:
            pass

    def _attach(self) -> None:
        plain = hello(engine=self._name, fingerprint=b"x" * 32)
        for role, message in (("rank", plain), ("scheduler", scheduler_hello(plain))):
            if role in self._open:
                continue
            if role == "scheduler" and "rank" not in self._open:
                return  # it would wait for its rank
            number, boot = self._before.get(role, (0, b""))
            named = msgspec.structs.replace(message, previous=number, previous_boot=boot)
            session = Session(self._worker.socket, named)
            if not isinstance(session.answer, attach.Welcome):
                session.close()  # busy with what went before
                continue
            self._open[role] = session
            self._before[role] = (session.welcome.session, session.welcome.boot_id)

    def _close(self, role: str) -> None:
        self._open.pop(role).close()
