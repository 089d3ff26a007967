"""What a worker does with a connection before, and instead of, a proper Hello."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from blockyard.common.codec import PREFIX_BYTES, encode
from blockyard.common.messages import attach
from blockyard.worker import handshake
from support.attach_client import SECONDS, Session, hello
from support.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as process:
        yield process


@pytest.fixture
def pidfd() -> Iterator[int]:
    descriptor = os.pidfd_open(os.getpid())
    yield descriptor
    os.close(descriptor)


def refused(worker: WorkerProcess, session: Session, code: str, before: float) -> None:
    """The answer is a typed refusal, the connection ends, and it was counted."""
    assert isinstance(session.answer, attach.Refused), session.answer
    assert session.answer.code == code
    session.ended()
    session.close()
    assert worker.metric("handshakes_refused_total", reason=code) == before + 1


@pytest.mark.parametrize("count", [0, 2, 5, 40])
def test_anything_but_one_descriptor_is_refused(worker: WorkerProcess, pidfd: int, count: int) -> None:
    before, open_before = worker.metric("handshakes_refused_total", reason="pidfd"), worker.descriptors()
    session = Session(worker.socket)
    frame = encode(hello(), attach.MAX_FRAME)
    if count:
        socket.send_fds(session.sock, [frame], [pidfd] * count)
    else:
        session.sock.sendall(frame)
    session.take_answer()
    refused(worker, session, "pidfd", before)
    worker.wait_descriptors(open_before)


def test_a_descriptor_that_is_no_pidfd_is_refused(worker: WorkerProcess) -> None:
    before = worker.metric("handshakes_refused_total", reason="pidfd")
    with open(os.devnull) as file:
        session = Session(worker.socket, hello(), [file.fileno()])
    refused(worker, session, "pidfd", before)


def test_a_pidfd_of_another_process_is_refused(worker: WorkerProcess) -> None:
    before = worker.metric("handshakes_refused_total", reason="pidfd")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        descriptor = os.pidfd_open(other.pid)
        session = Session(worker.socket, hello(), [descriptor])
        os.close(descriptor)
        other.communicate(b"\n", timeout=SECONDS)
    refused(worker, session, "pidfd", before)


@pytest.fixture
def foreign() -> Iterator[int]:
    """A pidfd of another process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        descriptor = os.pidfd_open(other.pid)
        yield descriptor
        os.close(descriptor)
        other.communicate(b"\n", timeout=SECONDS)


@pytest.mark.parametrize("newer_kernel", [True, False])
async def test_the_death_of_the_peer_itself_is_watched(
    monkeypatch: pytest.MonkeyPatch, pidfd: int, foreign: int, newer_kernel: bool
) -> None:
    """Before Linux 6.5 the kernel names no peer: the descriptor that came is taken if both PIDs are the same."""
    if not newer_kernel:
        monkeypatch.setattr(handshake, "_peer_pidfd", lambda sock: None)
    before = len(os.listdir("/proc/self/fd"))
    for sent in (pidfd, foreign):
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        with ours, theirs:
            ours.setblocking(False)
            socket.send_fds(theirs, [encode(hello(), attach.MAX_FRAME)], [sent])
            try:
                introduction = await handshake.receive_hello(ours, SECONDS)
            except handshake.HandshakeRefused as error:
                assert (sent, error.code) == (foreign, "pidfd")
            else:
                assert (sent, introduction.pid) == (pidfd, os.getpid())
                assert os.path.sameopenfile(introduction.pidfd, pidfd)
                os.close(introduction.pidfd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_peer_that_says_nothing_is_sent_away(worker: WorkerProcess) -> None:
    before = worker.metric("handshakes_refused_total", reason="timeout")
    session = Session(worker.socket)
    session.take_answer()
    refused(worker, session, "timeout", before)


def test_half_a_hello_is_sent_away_while_others_come_in(worker: WorkerProcess, pidfd: int) -> None:
    before = worker.metric("handshakes_refused_total", reason="timeout")
    frame = encode(hello(engine="slow"), attach.MAX_FRAME)
    slow = Session(worker.socket)
    socket.send_fds(slow.sock, [frame[:20]], [pidfd])
    assert Session(worker.socket, hello(engine="quick")).welcome
    slow.take_answer()
    refused(worker, slow, "timeout", before)


def test_a_hello_in_small_pieces_is_accepted(worker: WorkerProcess, pidfd: int) -> None:
    frame = encode(hello(engine="pieces"), attach.MAX_FRAME)
    session = Session(worker.socket)
    socket.send_fds(session.sock, [frame[:1]], [pidfd])
    for place in range(1, len(frame)):
        session.sock.sendall(frame[place : place + 1])
    session.take_answer()
    assert session.welcome.worker == "test-node"
    session.close()


def test_what_follows_hello_at_once_is_not_lost_nor_obeyed(worker: WorkerProcess, pidfd: int) -> None:
    before = worker.metric("frames_refused_total", reason="unexpected")
    session = Session(worker.socket)
    scheduler = hello(engine="hasty", role="scheduler", groups=[attach.GroupShape(0, 256, 0)])
    frames = encode(scheduler, attach.MAX_FRAME) + encode(attach.Finish("r"), attach.MAX_FRAME)
    socket.send_fds(session.sock, [frames], [pidfd])
    session.ended()
    session.close()
    assert worker.metric("frames_refused_total", reason="unexpected") == before + 1


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        (1 << 20).to_bytes(PREFIX_BYTES, "little"),
        b"\4\0\0\0\xc1\xc1\xc1\xc1",
        b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
        encode(attach.Finish("r"), attach.MAX_FRAME),
        encode(hello(rank=0), attach.MAX_FRAME)[:-1] + b"\xff",
    ],
)
def test_garbage_in_place_of_hello_is_refused(worker: WorkerProcess, pidfd: int, data: bytes) -> None:
    before = worker.metric("handshakes_refused_total", reason="malformed")
    session = Session(worker.socket)
    socket.send_fds(session.sock, [data], [pidfd])
    session.take_answer()
    refused(worker, session, "malformed", before)


@pytest.mark.parametrize("more", [0, 3], ids=["fewer fields", "more fields"])
def test_a_hello_in_the_form_of_a_later_version_is_refused_for_its_version(
    worker: WorkerProcess, pidfd: int, more: int
) -> None:
    before = worker.metric("handshakes_refused_total", reason="version")
    low = attach.PROTOCOL_MAX + 1
    fields = ["hello", low, low + 2, "9.9", *range(20 * bool(more))]
    payload = msgspec.msgpack.encode(fields)
    session = Session(worker.socket)
    socket.send_fds(session.sock, [len(payload).to_bytes(PREFIX_BYTES, "little") + payload], [pidfd])
    session.take_answer()
    assert isinstance(session.answer, attach.Refused)
    spoken = f"{attach.PROTOCOL_MIN} to {attach.PROTOCOL_MAX}"
    assert session.answer.detail == f"engine 9.9 speaks protocol {low} to {low + 2}, this worker speaks {spoken}"
    refused(worker, session, "version", before)


def test_a_peer_that_leaves_is_counted(worker: WorkerProcess) -> None:
    before = worker.metric("handshakes_refused_total", reason="gone")
    Session(worker.socket).close()
    worker.wait_metric("handshakes_refused_total", before + 1, reason="gone")


def test_many_silent_peers_are_bounded_and_shut_nobody_out_for_long() -> None:
    with WorkerProcess() as worker:
        silent = [Session(worker.socket) for _ in range(100)]
        worker.wait_metric("handshakes_refused_total", 36, reason="busy")
        worker.wait_metric("handshakes_refused_total", 64, reason="timeout")
        assert Session(worker.socket, hello()).welcome
        for session in silent:
            session.close()
