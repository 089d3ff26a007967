"""A real `blockyard worker` process on a socket and ports of its own, for tests.

Owns the process, its folder and its log, and the rough handling of it: kill, freeze, restart on one socket.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from support.child_process import ChildProcess

_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_HTTP_SECONDS = 10.0

MIB = 1 << 20

_DEFAULTS = {
    "node_id": "test-node",
    "host_pool": "16MiB",
    "slab_size": "1MiB",
    "min_slot": "4KiB",
    "prefault": "false",
    "insecure": "true",
    "metrics_listen": "127.0.0.1:0",
}


class WorkerProcess(ChildProcess):
    """`with WorkerProcess(pin_ttl="1s") as worker:` gives a worker that serves `worker.socket`.

    Keyword arguments are settings of WorkerConfig, written as in its file. With `spawn_only` nothing is started
    before `spawn` or `start`. `prefix` comes before its command, such as one that gives it other namespaces;
    `program` is run before the worker's own code, such as one that makes it speak another protocol.
    """

    def __init__(
        self, *, spawn_only: bool = False, prefix: Sequence[str] = (), program: str = "", **settings: str
    ) -> None:
        super().__init__()
        self._spawn_only = spawn_only
        self._prefix = prefix
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="blockyard-worker-"))
        self._settings = _DEFAULTS | {"socket": str(self._folder / "worker.sock")} | settings
        self.socket = Path(self._settings["socket"])
        self._log_from = 0

    @property
    def http(self) -> str:
        """HOST:PORT of its metrics and debug pages."""
        address = self._metrics_address()
        assert address is not None, "the worker does not serve"
        return address

    @property
    def log(self) -> str:
        """All that this worker has logged, over all its starts."""
        return self._log_path.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self if self._spawn_only else super().__enter__()

    def start(self) -> None:
        """Start and wait until it serves."""
        self.spawn()
        self.wait_serving()

    def wait_serving(self) -> None:
        """Wait until the worker spawned last serves."""
        deadline = time.monotonic() + _START_SECONDS
        while self._metrics_address() is None:
            if not self.alive or time.monotonic() > deadline:
                raise RuntimeError(f"worker does not serve (exit code {self.running().poll()}):\n{self.log[-4000:]}")
            time.sleep(0.02)

    def spawn(self) -> None:
        """Start and wait for nothing."""
        self._log_from = self._log_path.stat().st_size if self._log_path.exists() else 0
        lines = [f"{name} = {json.dumps(value)}" for name, value in self._settings.items()]
        file = self._folder / "worker.toml"
        file.write_text("\n".join(["[worker]", *lines]))
        program = f"{self._program}\nfrom blockyard.cli.main import main\nmain()"
        self.launch([*self._prefix, sys.executable, "-c", program, "worker", "--config", str(file)], self._log_path)

    def descriptors(self) -> int:
        """Descriptors that the worker has open now."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def wait_descriptors(self, most: int) -> None:
        """Wait until the worker has no more than so many open; connections of HTTP requests end on their own."""
        deadline = time.monotonic() + _STOP_SECONDS
        while (found := self.descriptors()) > most:
            if time.monotonic() > deadline:
                raise AssertionError(f"{found} descriptors are open, more than {most}")
            time.sleep(0.05)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of one of its HTTP endpoints."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self._metrics_address()}{path}", timeout=_HTTP_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether engines can attach, and the reason per degraded part."""
        content = json.loads(self.get("/readyz")[1])
        return content["ready"], {trouble["part"]: trouble["reason"] for trouble in content["degraded"]}

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the series of `blockyard_worker_<name>` with these labels; KeyError if there is none."""
        full = f"blockyard_worker_{name}"
        found = [
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == full and labels.items() <= sample.labels.items()
        ]
        if not found:
            raise KeyError(f"{full}{labels}")
        return sum(found)

    def counted(self, name: str, **labels: str) -> float:
        """The same of a counter, which is 0 as long as there is no series."""
        try:
            return self.metric(name, **labels)
        except KeyError:
            return 0.0

    def wait_metric(self, name: str, value: float, **labels: str) -> None:
        """Wait until a metric has this value, or fail saying which one it has."""
        deadline = time.monotonic() + _STOP_SECONDS
        while (found := self.metric(name, **labels)) != value:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name}{labels} is {found}, not {value}\n{self.log[-3000:]}")
            time.sleep(0.05)

    @property
    def _log_path(self) -> Path:
        return self._folder / "log"

    def _metrics_address(self) -> str | None:
        with self._log_path.open("rb") as log:
            log.seek(self._log_from)
            text = log.read().decode(errors="replace")
        found = re.search(r" serving .*metrics=\"?http://([^/ ]+)/metrics", text)
        return found[1] if found else None

    def remove_files(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
