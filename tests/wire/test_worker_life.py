"""Starts, ends and deaths: of a worker, and of the processes attached to it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach
from blockyard.common.messages.states import KeyState
from support.attach_client import SECONDS, Engine, Session, hello, key
from support.engine_side import wait_until
from support.storing_child import CHUNKS
from support.worker_process import WorkerProcess

TESTS = Path(__file__).resolve().parents[1]


@contextmanager
def storing_child(worker: WorkerProcess) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a store."""
    command = [sys.executable, "-m", "support.storing_child", str(worker.socket)]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "copying\n"
            yield child
        finally:
            child.kill()


def test_slots_of_a_killed_engine_are_free_again() -> None:
    with WorkerProcess() as worker, storing_child(worker) as child:
        assert worker.metric("slots", state="filling") == CHUNKS
        child.kill()
        child.wait(SECONDS)
        worker.wait_metric("sessions", 0)
        worker.wait_metric("fills_in_flight", 0)
        assert worker.metric("slots", state="filling") == worker.metric("slots", state="doomed") == 0
        with Engine(worker.socket) as engine:
            states = engine.acquire([key(number) for number in range(CHUNKS)]).states
            assert KeyState.HIT not in list(states)
            engine.store({key(0): b"y" * 8192})
            assert engine.load(engine.acquire([key(0)]), [key(0)]) == [b"y" * 8192]


def test_slots_of_a_hung_engine_are_kept_until_it_is_gone() -> None:
    with WorkerProcess(fill_deadline="300ms") as worker, storing_child(worker) as child:
        child.send_signal(signal.SIGSTOP)
        worker.wait_metric("fills_in_flight", 0)
        assert worker.metric("slots", state="doomed") == CHUNKS
        child.kill()
        child.wait(SECONDS)
        worker.wait_metric("slots", 0, state="doomed")


def test_sigterm_says_goodbye_removes_the_socket_and_exits_0() -> None:
    with WorkerProcess() as worker, Engine(worker.socket) as engine:
        assert worker.terminate() == 0
        assert not worker.socket.exists()
        for session in (engine.rank, engine.scheduler):
            assert session.ended() == "the worker stops"


def test_sigterm_is_not_held_up_by_a_peer_that_does_not_read() -> None:
    with WorkerProcess() as worker:
        rank = Session(worker.socket, hello())
        blob = b"".join(key(number) for number in range(attach.MAX_KEYS))
        for number in range(50):
            rank.send(attach.Resolve(number, number, "load", 0, blob, 0))
        assert worker.terminate() == 0
        rank.close()


def test_a_socket_left_by_a_killed_worker_is_replaced() -> None:
    with WorkerProcess() as worker, Engine(worker.socket) as engine:
        first = engine.header.boot_id
        engine.store({key(1): b"old" + bytes(8189)})
        worker.kill()
        assert worker.socket.exists()
        with pytest.raises(LinkClosed):
            engine.settle()
        worker.start()
        with Engine(worker.socket) as second:
            assert second.header.boot_id != first
            assert second.rank.welcome.boot_id == second.header.boot_id
            assert list(second.acquire([key(1)]).states) == [KeyState.NEVER_STORED]


def test_a_second_worker_leaves_a_live_one_alone() -> None:
    with WorkerProcess() as worker, WorkerProcess(spawn_only=True, socket=str(worker.socket)) as second:
        second.spawn()
        assert second.wait() == 2
        waited, refused = second.log.splitlines()
        assert "waiting for its end" in waited
        assert refused.endswith("another worker serves it; right: a path of its own for each worker")
        assert worker.alive
        with Engine(worker.socket) as engine:
            assert list(engine.acquire([key(1)]).states) == [KeyState.NEVER_STORED]


def test_a_frozen_worker_is_left_alone_too() -> None:
    with WorkerProcess() as worker, WorkerProcess(spawn_only=True, socket=str(worker.socket)) as second:
        worker.freeze()
        second.spawn()
        assert second.wait() == 2
        worker.thaw()
        assert worker.socket.exists()


def test_a_worker_waits_for_the_end_of_its_predecessor() -> None:
    with WorkerProcess() as worker, WorkerProcess(spawn_only=True, socket=str(worker.socket)) as second:
        worker.freeze()
        second.spawn()
        wait_until(lambda: "waiting for its end" in second.log, "the successor waits")
        worker.kill()
        wait_until(lambda: " serving " in second.log, "the successor serves")
        with Engine(worker.socket) as engine:
            assert list(engine.acquire([key(1)]).states) == [KeyState.NEVER_STORED]


def one_line(log: str) -> str:
    """The only line of a log, which must have no more."""
    lines = log.splitlines()
    assert len(lines) == 1, log
    return lines[0]


@pytest.mark.parametrize(
    ("naming", "settings"),
    [
        ("host_pool", {"host_pool": "4TiB", "slab_size": "16GiB"}),
        ("metrics_listen", {"metrics_listen": "192.0.2.1:80"}),
        ("socket", {"socket": "/proc/worker.sock"}),
        ("socket", {"socket": "/proc/none/worker.sock"}),
    ],
)
def test_what_cannot_be_had_is_one_line_and_exit_code_2(naming: str, settings: dict[str, str]) -> None:
    with WorkerProcess(spawn_only=True, **settings) as worker:
        worker.spawn()
        assert worker.wait() == 2
        assert one_line(worker.log).startswith(f"blockyard: {naming} = ")


def test_a_file_at_the_socket_path_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "worker.sock"
    path.write_text("mine")
    with WorkerProcess(spawn_only=True, socket=str(path)) as worker:
        worker.spawn()
        assert worker.wait() == 2
        assert "no socket" in one_line(worker.log)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("socket_mode", "folder_mode"), [("0600", 0o700), ("0660", 0o750)])
def test_the_sockets_folder_is_made_on_a_fresh_machine(tmp_path: Path, socket_mode: str, folder_mode: int) -> None:
    path = tmp_path / "run" / "worker.sock"
    with WorkerProcess(socket=str(path), socket_mode=socket_mode):
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.parent.stat().st_mode) == folder_mode


def test_no_more_than_one_folder_is_made(tmp_path: Path) -> None:
    with WorkerProcess(spawn_only=True, socket=str(tmp_path / "a" / "b" / "worker.sock")) as worker:
        worker.spawn()
        assert worker.wait() == 2
        assert "its folder is missing" in one_line(worker.log)


def test_the_socket_has_the_mode_it_was_given() -> None:
    with WorkerProcess(socket_mode="0660") as worker:
        assert stat.S_IMODE(os.stat(worker.socket).st_mode) == 0o660


def test_four_workers_run_side_by_side() -> None:
    with WorkerProcess() as one, WorkerProcess() as two, WorkerProcess() as three, WorkerProcess() as four:
        for worker in (one, two, three, four):
            assert worker.get("/healthz")[0] == 200
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(worker.socket))


def test_prefault_changes_no_byte_and_takes_the_memory() -> None:
    with WorkerProcess(prefault="true", host_pool="64MiB") as worker, Engine(worker.socket) as engine:
        chunks = {key(number): bytes([number % 256]) * 8192 for number in range(100)}
        engine.store(chunks)
        wait_resident(worker.pid, 64 << 20)
        assert engine.load(engine.acquire(list(chunks)), list(chunks)) == list(chunks.values())


def wait_resident(pid: int, size: int) -> None:
    """Wait until a process has so much shared memory resident."""
    for _ in range(200):
        status = Path(f"/proc/{pid}/status").read_text()
        resident = int(status.split("RssShmem:")[1].split()[0]) * 1024
        if resident >= size:
            return
        time.sleep(0.05)
    raise AssertionError(f"only {resident} of {size} bytes are resident")
