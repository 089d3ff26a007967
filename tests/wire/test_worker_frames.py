"""Frames that are no messages: each ends at most its own session, is counted, and leaves the books right."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import msgspec
import pytest

from blockyard.common.codec import PREFIX_BYTES, encode
from blockyard.common.link import LinkClosed, LinkTimeout
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


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_wild_and_mangled_frames_leave_the_books_right(seed: int) -> None:
    draw = random.Random(seed)
    with WorkerProcess(host_pool="2MiB", pin_ttl="300ms", fill_deadline="300ms", max_pins_per_engine="40") as worker:
        attacker = Attacker(worker, draw)
        for _ in range(FRAMES):
            attacker.act()
        attacker.leave()
        worker.wait_metric("sessions", 0)
        assert worker.alive
        assert worker.get("/debug/invariants") == (200, '{"broken": null}')
        assert worker.metric("frames_refused_total") > 0
        assert worker.metric("fills_committed_total") > 0
        assert worker.metric("loads_completed_total") > 0
        assert worker.metric("pool_slots") == worker.metric("slots")
        assert worker.metric("slots", state="filling") == worker.metric("slots", state="doomed") == 0
        asked = worker.metric("acquire_keys_total")
        assert asked == worker.metric("hit_chunks_total") + worker.metric("miss_chunks_total")
        chunks = {key(7000 + number): bytes([number]) * 8192 for number in range(8)}
        with Engine(worker.socket, hello(engine="after", fingerprint=b"a" * 32)) as engine:
            engine.store(chunks)
            assert engine.load(engine.acquire(list(chunks)), list(chunks)) == list(chunks.values())


class Attacker:
    """An engine that sends what it likes, and attaches again whenever the worker has had enough of it."""

    def __init__(self, worker: WorkerProcess, draw: random.Random) -> None:
        self._worker = worker
        self._draw = draw
        self._before: dict[str, tuple[int, bytes]] = {}
        self._sessions: dict[str, Session] = {}
        self._grants: deque[attach.Grant] = deque(maxlen=8)
        self._jobs = 0

    def act(self) -> None:
        """One frame: as a rule a message in its form, seldom a mangled one or one of the other role."""
        draw = self._draw
        if not self._sessions:
            self._attach()
        message = self._message()
        role = "rank" if isinstance(message, RANK_KINDS) else "scheduler"
        if draw.random() < 0.002:
            role = draw.choice(ROLES)
        data = encode(message, attach.MAX_FRAME)
        if draw.random() < 0.005:
            data = mangled(draw, data)
        self._send(self._sessions[role], data)

    def leave(self) -> None:
        """End well, whatever went before."""
        self.close()
        self._attach()
        for session in self._sessions.values():
            session.send(attach.Bye())
            session.ended()
        self.close()

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions = {}

    def _message(self) -> msgspec.Struct:
        """About jobs and grants that are there, or are not any more, or never were."""
        draw = self._draw
        job, request = max(0, self._jobs + draw.randrange(-4, 2)), f"r{draw.randrange(9)}"
        run = attach.Run(0, 0, b"", keys_of(job), draw.random() < 0.5)
        states = bytes(draw.choices([0, 5, 7, 8], [9, 1, 1, 1], k=len(keys_of(job)) // 32))
        grant = draw.choice(self._grants) if self._grants else attach.Grant(job, 1, b"")
        match draw.randrange(9):
            case 0:
                return attach.Acquire(job, request, [run])
            case 1 | 2:
                self._jobs += 1
                return attach.Fill(self._jobs, request, [msgspec.structs.replace(run, keys=keys_of(self._jobs))])
            case 3 | 4:
                return attach.Resolve(1, job, "store", 0, keys_of(job), draw.choice([0, 0, 5]))
            case 5:
                return attach.Resolve(1, grant.seq, "load", grant.grant, keys_of(grant.seq), 0)
            case 6:
                return attach.StoreDone(job, states, 1, 1)
            case 7:
                return attach.LoadDone(grant.seq, bytes(len(keys_of(grant.seq)) // 32), 1, 1)
            case _:
                return draw.choice([attach.Release(grant.grant), attach.Finish(request)])

    def _send(self, session: Session, data: bytes) -> None:
        try:
            session.sock.sendall(data)
            self._drain(session)
        except (OSError, LinkClosed):
            self.close()
        if int.from_bytes(data[:PREFIX_BYTES], "little") != len(data) - PREFIX_BYTES:
            # What follows would only be the rest of this frame.
            self.close()

    def _attach(self) -> None:
        plain = hello(engine="attacker", fingerprint=b"x" * 32)
        for role, message in (("rank", plain), ("scheduler", scheduler_hello(plain))):
            # Naming the session before says that its copies have ended; else their slots would stay doomed.
            number, boot = self._before.get(role, (0, b""))
            named = msgspec.structs.replace(message, previous=number, previous_boot=boot)
            session = self._sessions[role] = Session(self._worker.socket, named)
            self._before[role] = (session.welcome.session, session.welcome.boot_id)

    def _drain(self, session: Session) -> None:
        """Read what has come, so that this is not about peers that do not read."""
        try:
            while True:
                answer = session.link.receive(0)
                if isinstance(answer, attach.Grant) and answer.grant:
                    self._grants.append(answer)
        except LinkTimeout:
            pass


ROLES = ("rank", "scheduler")
RANK_KINDS = (attach.Resolve, attach.StoreDone, attach.LoadDone)


def keys_of(job: int) -> bytes:
    """The keys of a job: some of its own, some that other jobs have too."""
    draw = random.Random(job)
    return b"".join(key(draw.randrange(600)) for _ in range(draw.randrange(1, 9)))


def mangled(draw: random.Random, frame: bytes) -> bytes:
    """A frame with a few bytes changed, with another length, or replaced by noise."""
    data = bytearray(frame)
    match draw.randrange(3):
        case 0:
            for _ in range(draw.randrange(1, 4)):
                data[draw.randrange(PREFIX_BYTES, len(data))] = draw.randrange(256)
        case 1:
            data[draw.randrange(PREFIX_BYTES)] ^= 1 << draw.randrange(8)
        case 2:
            return framed(draw.randbytes(draw.randrange(1, 200)))
    return bytes(data)
