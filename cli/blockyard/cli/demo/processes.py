"""Owns child processes of the demo and of tests: start, log, wait until ready, end. It never knows what they
are for.

Every child leads a session of its own, so that a server's own children can be found and ended with it, and
Ctrl-C reaches only the supervisor. What happens when the supervisor itself is killed is the watchdog's
matter.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from blockyard.cli.demo import process_table

Probe = Callable[[], Awaitable[bool]]
Progress = Callable[[float, str], None]

MARK_VARIABLE = "BLOCKYARD_SUPERVISOR"
LOG_TAIL_LINES = 25
LOG_TAIL_BYTES = 64 * 1024
PROBE_PAUSE_S = 0.2
EXIT_POLL_S = 0.02
KILL_DEADLINE_S = 10.0


class ProcessFailed(RuntimeError):
    """A child ended or stayed silent; the message carries its last log lines."""


class ManagedProcess:
    """One child with its log. Its pid is also its session id."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self.pid = popen.pid
        self._popen = popen
        self._gone = False

    def returncode(self) -> int | None:
        return self._popen.poll()

    def alive(self) -> bool:
        return self.returncode() is None

    def members(self) -> list[int]:
        """The child and all living processes of its session; none for ever once none were left.

        From then on the kernel may give the number to a stranger.
        """
        if self._gone:
            return []
        members = process_table.in_session(self.pid)
        self._gone = not members and not self.alive()
        return members

    def gone(self) -> bool:
        return not self.alive() and not self.members()

    def descendants(self) -> list[int]:
        return process_table.descendants(self.pid)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    async def wait_ready(self, probe: Probe, deadline_s: float, progress: Progress | None = None) -> float:
        """Waits until `probe` says yes and returns the seconds it took; a child that ends first is an error
        at once.
        """
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            if not self.alive():
                raise ProcessFailed(self._story(f"ended with status {self.returncode()} after {waited:.1f} s"))
            if await probe():
                return waited
            if waited > deadline_s:
                raise ProcessFailed(self._story(f"is not ready after {deadline_s:.0f} s"))
            if progress is not None:
                progress(waited, self.name)
            await asyncio.sleep(PROBE_PAUSE_S)

    def kill(self) -> None:
        """SIGKILL to the whole session at once, as when a machine's container is torn down."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not self._wait_gone(KILL_DEADLINE_S):
            raise ProcessFailed(f"{self.name}: processes {self.members()} survived SIGKILL")

    def kill_leader(self) -> None:
        """SIGKILL to the child alone; whether its own children notice is what such a test wants to see."""
        self._popen.kill()
        self._popen.wait(timeout=KILL_DEADLINE_S)

    def terminate(self, grace_s: float = 10.0) -> int | None:
        """SIGTERM to the child, then SIGKILL for whatever of its session is left after `grace_s`."""
        self._popen.terminate()
        if not self._wait_gone(grace_s):
            self.kill()
        return self.returncode()

    def _wait_gone(self, deadline_s: float) -> bool:
        give_up_at = time.monotonic() + deadline_s
        while not self.gone():
            if time.monotonic() > give_up_at:
                return False
            time.sleep(EXIT_POLL_S)
        return True

    def _story(self, what: str) -> str:
        return f"{self.name} {what}; the last lines of {self.log_path}:\n{self.log_tail()}"


class Supervisor:
    """Starts children and ends all of them on `close`, at interpreter exit, or, by its watchdog, when it is
    killed.
    """

    def __init__(self, log_dir: Path) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self.log_dir = log_dir
        self._token = secrets.token_hex(16)
        self._watchdog = _start_watchdog(f"{MARK_VARIABLE}={self._token}")
        self._processes: list[ManagedProcess] = []
        atexit.register(self.close)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> ManagedProcess:
        """Starts `command` with `env` on top of our environment; its output is appended to `<name>.log`."""
        self._forget_ended()
        log_path = self.log_dir / f"{name}.log"
        with log_path.open("ab") as log:
            popen = subprocess.Popen(
                [str(part) for part in command],
                env={**os.environ, **(env or {}), MARK_VARIABLE: self._token},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._tell_watchdog(f"+{popen.pid}")
        process = ManagedProcess(name, popen, log_path)
        self._processes.append(process)
        return process

    def ended(self) -> list[ManagedProcess]:
        """Children that ended by themselves with an error."""
        return [process for process in self._processes if process.returncode()]

    def survivors(self) -> list[int]:
        """Processes that came from here and still live, whatever session they moved to."""
        return process_table.marked(f"{MARK_VARIABLE}={self._token}")

    def close(self, grace_s: float = 10.0) -> None:
        """Ends the children, the last started first, then the watchdog. Calling it again does nothing."""
        atexit.unregister(self.close)
        try:
            while self._processes:
                self._processes[-1].terminate(grace_s)
                self._processes.pop()
        finally:
            self._dismiss_watchdog()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget_ended(self) -> None:
        for process in [process for process in self._processes if process.gone()]:
            self._processes.remove(process)
            self._tell_watchdog(f"-{process.pid}")

    def _dismiss_watchdog(self) -> None:
        """Closing its input makes it kill whatever we failed to end."""
        self._forget_ended()
        if self._watchdog.stdin is not None and not self._watchdog.stdin.closed:
            self._watchdog.stdin.close()
            self._watchdog.wait(timeout=KILL_DEADLINE_S)

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog.stdin is None:
            raise ProcessFailed("the watchdog has no standard input")
        self._watchdog.stdin.write(f"{line}\n".encode())
        self._watchdog.stdin.flush()


def _start_watchdog(mark: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "blockyard.cli.demo.watchdog", mark]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
