"""The supervisor with real child processes: readiness, failure, and that nothing is ever left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockyard.cli.demo import process_table
from blockyard.cli.demo.ports import free_ports
from blockyard.cli.demo.processes import ManagedProcess, ProcessFailed, Supervisor

GONE_DEADLINE_S = 20.0

# A parent and a child of its own, both deaf to SIGTERM; prints the child's pid.
DEAF_FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""

# The child goes on in a session of its own.
LEAVING_FAMILY = """
import os, time
if os.fork() == 0:
    os.setsid()
time.sleep(600)
"""

# A supervisor that starts such a family and then waits to be killed.
SUPERVISING = """
import sys, time
from pathlib import Path
from blockyard.cli.demo.processes import Supervisor
supervisor = Supervisor(Path(sys.argv[1]))
process = supervisor.start("family", [sys.executable, "-c", sys.argv[2]])
while not process.descendants():
    time.sleep(0.02)
print(process.pid, *process.descendants(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "logs") as started:
        yield started


def start_family(supervisor: Supervisor) -> ManagedProcess:
    process = supervisor.start("family", [sys.executable, "-c", DEAF_FAMILY])
    wait_for(lambda: len(process.log_tail().split()) == 1)
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + GONE_DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def living(pids: list[int]) -> list[int]:
    entries = [process_table.read_entry(pid) for pid in pids]
    return [entry.pid for entry in entries if entry is not None and not entry.is_zombie()]


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def test_ready_is_said_with_the_seconds_it_took(supervisor: Supervisor) -> None:
    process = supervisor.start("sleeper", ["sleep", "600"])
    assert await process.wait_ready(yes, deadline_s=5.0) < 5.0


async def test_a_child_that_ends_early_shows_its_last_lines(supervisor: Supervisor) -> None:
    process = supervisor.start("broken", ["sh", "-c", "echo the reason; exit 3"])
    with pytest.raises(ProcessFailed, match=r"broken ended with status 3(.|\n)*the reason"):
        await process.wait_ready(no, deadline_s=20.0)


async def test_a_silent_child_is_given_up_at_the_deadline(supervisor: Supervisor) -> None:
    seen: list[str] = []
    process = supervisor.start("silent", ["sleep", "600"])
    with pytest.raises(ProcessFailed, match="silent is not ready after 1 s"):
        await process.wait_ready(no, 0.6, lambda _waited, name: seen.append(name))
    assert set(seen) == {"silent"}


def test_environment_and_output_reach_the_log(supervisor: Supervisor) -> None:
    process = supervisor.start("speaker", ["sh", "-c", 'echo "$COLOUR"; echo err >&2'], {"COLOUR": "blue"})
    wait_for(lambda: not process.alive())
    assert process.log_tail().splitlines() == ["blue", "err"]


def test_terminate_ends_also_a_deaf_family(supervisor: Supervisor) -> None:
    process = start_family(supervisor)
    family = process.members()
    assert len(family) == 2
    process.terminate(grace_s=0.2)
    assert process.returncode() == -signal.SIGKILL
    assert living(family) == []


def test_orphans_of_a_killed_leader_are_still_its_members(supervisor: Supervisor) -> None:
    process = start_family(supervisor)
    child = process.descendants()
    process.kill_leader()
    assert process.members() == child
    process.kill()
    assert living(child) == []


def test_close_ends_everything_and_can_be_repeated(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    family = start_family(supervisor).members()
    supervisor.close(grace_s=0.2)
    supervisor.close()
    assert living(family) == []


def killed_supervisor_family(log_dir: Path, family_script: str) -> list[int]:
    """The two processes that a supervisor had started when it was killed."""
    command = [sys.executable, "-c", SUPERVISING, str(log_dir), family_script]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    family = [int(pid) for pid in parent.stdout.readline().split()]
    parent.stdout.close()
    assert len(living(family)) == 2
    parent.kill()
    parent.wait()
    return family


def test_a_killed_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    family = killed_supervisor_family(tmp_path, DEAF_FAMILY)
    wait_for(lambda: living(family) == [])


def test_a_child_that_left_its_session_is_found_by_its_mark(tmp_path: Path) -> None:
    """As is one that was started, but not yet named to the watchdog, when the supervisor was killed."""
    family = killed_supervisor_family(tmp_path, LEAVING_FAMILY)
    wait_for(lambda: living(family) == [])


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
