"""A real process under a test's hand: started, killed, frozen, and gone when the test is.

Owns the process alone; what it is, its files and when it is ready are for the subclass to say.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_STOP_SECONDS = 30.0


class ChildProcess:
    """`with Subclass(...) as child:` starts it; afterwards neither process nor files are left."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start, also again after an end, and wait until it serves."""

    @abstractmethod
    def remove_files(self) -> None:
        """Remove what it leaves on disk."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up()

    @property
    def pid(self) -> int:
        return self.running().pid

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def launch(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start a command and wait for nothing; the kernel ends it with the test run, however that ends."""
        bound = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        with log.open("ab") as output:
            self._process = subprocess.Popen([*bound, *command], stdout=output, stderr=output, env=environment)

    def running(self) -> subprocess.Popen[bytes]:
        """The process, which must have been started and not waited for."""
        assert self._process is not None, f"{type(self).__name__} is not running"
        return self._process

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        code = self.running().wait(_STOP_SECONDS)
        self._process = None
        return code

    def terminate(self) -> int:
        """SIGTERM: it says goodbye; returns the exit code."""
        self.running().terminate()
        return self.wait()

    def kill(self) -> None:
        """SIGKILL: no goodbye to anyone, and nothing is tidied up."""
        self.running().kill()
        self.wait()

    def freeze(self) -> None:
        """Stop answering while all connections stay up."""
        self.running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.running().send_signal(signal.SIGCONT)

    def _clean_up(self) -> None:
        if self._process is not None:
            self.kill()
        self.remove_files()
