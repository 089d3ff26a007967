"""Frames that are no messages: each ends at most its own session, is counted, and leaves the books right."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from blockyard.common.codec import PREFIX_BYTES, encode
from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach
from support.attach_client import Engine, Session, hello, key, scheduler_hello
from support.worker_process import WorkerProcess

FRAMES = 3000


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as process:
        yield process


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(PREFIX_BYTES, "little") + payload


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("empty", b"\0\0\0\0"),
        ("oversize", b"\xff\xff\xff\x7f"),
        ("oversize", (attach.MAX_FRAME + 1).to_bytes(PREFIX_BYTES, "little")),
        ("malformed", framed(b"\xc1")),
        ("malformed", framed(b"\x91" * 5000)),
        ("malformed", framed(msgspec.msgpack.encode({"kind": "finish"}))),
        ("malformed", framed(msgspec.msgpack.encode(["finish"]))),
        ("malformed", framed(msgspec.msgpack.encode(["finish", ""]))),
        ("malformed", framed(msgspec.msgpack.encode(["finish", "r", "more"]))),
        ("malformed", framed(msgspec.msgpack.encode(["release", -1, b""]))),
        ("malformed", framed(msgspec.msgpack.encode(["acquire", 1, "r", [[0, 0, b"", b"ragged", True]]]))),
    ],
)
def test_a_bad_frame_ends_its_session_with_a_reason(worker: WorkerProcess, reason: str, data: bytes) -> None:
    before = worker.metric("frames_refused_total", reason=reason)
    rank = Session(worker.socket, hello(engine="bad"))
    scheduler = Session(worker.socket, scheduler_hello(hello(engine="bad")))
    scheduler.sock.sendall(data)
    assert scheduler.ended()
    worker.wait_metric("frames_refused_total", before + 1, reason=reason)
    rank.close()
    scheduler.close()


def test_a_message_of_a_later_version_is_counted_and_passed_over(worker: WorkerProcess) -> None:
    before = worker.metric("frames_refused_total", reason="unknown")
    with Engine(worker.socket, hello(engine="newer")) as engine:
        engine.scheduler.sock.sendall(framed(msgspec.msgpack.encode(["teleport", 1, "there"])))
        assert engine.acquire([key(1)])
    assert worker.metric("frames_refused_total", reason="unknown") == before + 1


def test_thousands_of_mangled_frames_leave_the_worker_as_it_was(worker: WorkerProcess) -> None:
    draw = random.Random(20260101)
    attacker = Attacker(worker, draw)
    for _ in range(FRAMES):
        attacker.send(mangled(draw))
    attacker.close()
    assert worker.alive
    assert worker.metric("frames_refused_total") > FRAMES / 10
    assert worker.get("/debug/invariants") == (200, '{"broken": null}')
    assert worker.metric("pool_slots") == worker.metric("slots")
    assert worker.metric("acquire_keys_total") == worker.metric("hit_chunks_total") + worker.metric("miss_chunks_total")
    chunks = {key(7000 + number): bytes([number]) * 8192 for number in range(8)}
    with Engine(worker.socket, hello(engine="after", fingerprint=b"a" * 32)) as engine:
        engine.store(chunks)
        assert engine.load(engine.acquire(list(chunks)), list(chunks)) == list(chunks.values())


class Attacker:
    """An engine that attaches again whenever the worker has had enough of it."""

    def __init__(self, worker: WorkerProcess, draw: random.Random) -> None:
        self._worker = worker
        self._draw = draw
        self._lives = 0
        self._sessions: list[Session] = []

    def send(self, data: bytes) -> None:
        if not self._sessions:
            self._attach()
        session = self._draw.choice(self._sessions)
        try:
            session.sock.sendall(data)
            self._drain(session)
            if int.from_bytes(data[:PREFIX_BYTES], "little") != len(data) - PREFIX_BYTES:
                # What follows would only be the rest of this frame.
                self.close()
        except (OSError, LinkClosed):
            self.close()

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._sessions = []

    def _attach(self) -> None:
        self._lives += 1
        message = hello(engine=f"attacker-{self._lives}", fingerprint=b"x" * 32)
        self._sessions = [Session(self._worker.socket, message)]
        self._sessions.append(Session(self._worker.socket, scheduler_hello(message)))

    def _drain(self, session: Session) -> None:
        """Read what has come, so that this is not about peers that do not read."""
        session.sock.setblocking(False)
        try:
            if not session.sock.recv(1 << 20):
                raise LinkClosed("ended by the worker")
        except BlockingIOError:
            pass
        finally:
            session.sock.setblocking(True)


def mangled(draw: random.Random) -> bytes:
    """A valid frame with a few bytes changed, cut, added or replaced by noise; sometimes left valid."""
    keys = b"".join(key(draw.randrange(50)) for _ in range(draw.randrange(1, 9)))
    run = attach.Run(draw.choice([0, 0, 0, 9]), 0, b"", keys)
    job = draw.randrange(20)
    states = bytes(draw.randrange(12) for _ in range(len(keys) // 32))
    message = draw.choice(
        [
            attach.Acquire(1, "r", [run]),
            attach.Fill(job, "r", [run]),
            attach.Release(draw.randrange(30), draw.choice([b"", keys])),
            attach.Finish("r"),
            attach.Forget("test"),
            attach.Resolve(1, job, draw.choice(["store", "load"]), draw.randrange(30), keys, draw.choice([0, 0, 5])),
            attach.StoreDone(job, states, 1, 1),
            attach.LoadDone(job, states, 1, 1),
            attach.EngineCounters([("no-such-metric", "x", float(draw.choice([1, -1])))]),
            hello(),
        ]
    )
    frame = bytearray(encode(message, attach.MAX_FRAME))
    match draw.randrange(5):
        case 0:
            return bytes(frame)
        case 1 | 2:
            for _ in range(draw.randrange(1, 4)):
                frame[draw.randrange(PREFIX_BYTES, len(frame))] = draw.randrange(256)
        case 3:
            frame[draw.randrange(PREFIX_BYTES)] ^= 1 << draw.randrange(8)
        case 4:
            payload = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 200)))
            return framed(payload)
    return bytes(frame)
