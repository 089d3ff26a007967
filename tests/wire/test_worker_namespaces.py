"""Processes of engines and of the worker in namespaces of their own: who is who, and who has died."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.light_process import LightProcess
from support.namespaces import APART, as_user, require
from support.worker_books import check_idle
from support.worker_process import WorkerProcess

TESTS = Path(__file__).resolve().parents[1]
USER, GROUP = 23456, 34567


def loaded(answer: dict[str, Any]) -> tuple[int, int, int]:
    """What a load came to: hits, chunks loaded, chunks with wrong bytes."""
    return answer["hits"], answer["loaded"], answer["wrong"]


@pytest.fixture(params=["worker outside", "worker apart too"])
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    prefix = require(*APART) if request.param == "worker apart too" else ()
    with WorkerProcess(prefix=prefix) as process:
        yield process


@pytest.mark.parametrize(("whose", "answer"), [("child", "pidfd"), ("ended", "gone"), ("own", "welcome")])
def test_only_a_pidfd_of_the_peer_itself_is_taken_from_a_namespace_that_we_do_not_see(
    worker: WorkerProcess, whose: str, answer: str
) -> None:
    command = [*require(*APART), sys.executable, "-m", "support.impostor", str(worker.socket), whose]
    said = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.strip() == answer


def test_an_engine_in_namespaces_of_its_own_stores_loads_and_is_missed(worker: WorkerProcess) -> None:
    prefix = require(*APART)
    with LightProcess(worker.socket, "apart", prefix=prefix) as engine:
        assert engine.do("store", "chat", 6)["stored"] == 6
        assert loaded(engine.do("load", "chat", 6)) == (6, 6, 0)
        with LightProcess(worker.socket, "beside") as beside:
            worker.wait_metric("checksum_backlog", 0)
            assert loaded(beside.do("load", "chat", 6)) == (6, 6, 0)
        assert engine.do("stall", "unfinished", 4, stall_after=2) == {"copied": 2}
        worker.wait_metric("fills_in_flight", 4)
        engine.kill()
    worker.wait_metric("sessions", 0)
    check_idle(worker)
    with LightProcess(worker.socket, "next", prefix=prefix) as engine:
        assert engine.do("load", "chat", 6)["wrong"] == 0
        assert engine.do("store", "unfinished", 4)["stored"] == 4


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that a group may enter, as an operator would make it."""
    folder = Path(tempfile.mkdtemp(prefix="blockyard-group-"))
    require(*as_user(USER, GROUP))
    os.chown(folder, -1, GROUP)
    folder.chmod(0o2750)
    yield folder
    shutil.rmtree(folder)


def test_an_engine_of_another_user_gets_in_by_its_group(shared_folder: Path) -> None:
    with WorkerProcess(socket=str(shared_folder / "w"), socket_mode="0660") as worker:
        with LightProcess(shared_folder / "w", "other", prefix=as_user(USER, GROUP)) as engine:
            assert engine.do("store", "chat", 6)["stored"] == 6
            assert loaded(engine.do("load", "chat", 6)) == (6, 6, 0)
            engine.kill()
        worker.wait_metric("sessions", 0)
        check_idle(worker)


def test_who_is_not_of_the_group_stays_out(shared_folder: Path) -> None:
    with WorkerProcess(socket=str(shared_folder / "w"), socket_mode="0660"):
        command = [*as_user(USER, GROUP + 1), sys.executable, "-m", "support.impostor", str(shared_folder / "w"), "own"]
        ended = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=60, check=False)
        assert "PermissionError" in ended.stderr
