"""A light engine as a process of its own, obeying one command at a time. Owns the process and its control socket.

Its answers to `load` say how many chunks hit and how many came back with wrong bytes.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.child_process import ChildProcess

_START_SECONDS = 60.0


class LightProcess(ChildProcess):
    """`with LightProcess(worker.socket, "a") as engine:` is attached; `prefix` comes before its command.

    With `spawn_only` it is only begun, so that several start at once; `wait_attached` ends that.
    """

    def __init__(
        self,
        worker: Path,
        name: str,
        *,
        geometry: str = "odd",
        prefix: Sequence[str] = (),
        spawn_only: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self._worker = worker
        self._geometry = geometry
        self._prefix = prefix
        self._spawn_only = spawn_only
        self._folder = Path(tempfile.mkdtemp(prefix="blockyard-light-"))
        # Whoever the process is, it can reach its control socket.
        self._folder.chmod(0o755)
        self._connection: socket.socket | None = None

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        control = self._folder / "control"
        control.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(control))
        control.chmod(0o666)
        self._listener.listen(1)
        self._listener.settimeout(_START_SECONDS)
        module = [sys.executable, "-m", "blockyard.engine.light.process"]
        arguments = [str(control), str(self._worker), self.name, self._geometry]
        self.launch([*self._prefix, *module, *arguments], self._folder / "log")
        if not self._spawn_only:
            self.wait_attached()

    def wait_attached(self) -> None:
        """Take its connection, and its word that it is attached."""
        with self._listener:
            self._connection, _ = self._listener.accept()
        self._connection.settimeout(_START_SECONDS)
        self._lines = self._connection.makefile("rw", encoding="utf-8")
        assert self.answer() == {"ready": self.name}

    def do(self, what: str, conversation: str, chunks: int, **values: object) -> dict[str, Any]:
        """One command and its answer."""
        self._lines.write(json.dumps({"do": what, "conversation": conversation, "chunks": chunks, **values}) + "\n")
        self._lines.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line that it says."""
        answer: dict[str, Any] = json.loads(self._lines.readline() or "{}")
        assert answer and "error" not in answer, f"{answer}\n{self.log[-3000:]}"
        return answer

    def remove_files(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)
