"""A real etcd on free loopback ports, for tests. Owns the process and its data directory, and the rough
handling of both: kill, restart on the same data, freeze, wipe."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.child_process import ChildProcess

_START_TIMEOUT_S = 20.0
# Below the range from which the kernel takes the ports of outgoing connections.
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """etcd's own files; `ca` also verifies its clients, who must then show a certificate."""

    ca: Path
    cert: Path
    key: Path
    name: str = "etcd"
    """The CN of the certificate."""


class EtcdServer(ChildProcess):
    """`with EtcdServer() as etcd:` gives a server that answers at `etcd.endpoint` and is gone afterwards."""

    def __init__(self, *, tls: ServerTls | None = None, name: str = "test") -> None:
        super().__init__()
        self.name = name
        self._tls = tls
        self._root = Path(tempfile.mkdtemp(prefix="blockyard-etcd-"))
        self._client_port, self._peer_port, self._health_port = _free_ports(3)
        self.initial_cluster = f"{name}={self.peer}"
        """All members as `name=peer`, with commas; only itself unless set before the first start."""

    @property
    def peer(self) -> str:
        """Where other members reach it."""
        return f"http://127.0.0.1:{self._peer_port}"

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._client_port}"

    def start(self) -> None:
        """Start, on the data of the last run if there was one, and wait until it serves."""
        self.spawn()
        self.wait_healthy()

    def spawn(self) -> None:
        """Start and wait for nothing."""
        self.launch(["etcd", *self._flags()], self._root / "log", _clean_environment())

    def wipe(self) -> None:
        """Lose all data, as a restored or rebuilt cluster would have. The server must not be running."""
        assert self._process is None
        shutil.rmtree(self._root / "data")

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Serve meanwhile where no client looks, so that data changes unseen. The server must not be running."""
        known, self._client_port = self._client_port, unused_port()
        try:
            self.start()
            yield
            self.kill()
        finally:
            self._client_port = known

    def save(self) -> None:
        """Take a backup."""
        self.ctl("snapshot", "save", str(self._root / "backup"))

    def restore(self) -> None:
        """Go back to the backup. The server must not be running."""
        self.wipe()
        tool = "etcdutl" if shutil.which("etcdutl") else "etcdctl"
        where = ["--data-dir", str(self._root / "data"), "--name", self.name]
        members = ["--initial-cluster", self.initial_cluster, "--initial-advertise-peer-urls", self.peer]
        subprocess.run(
            [tool, "snapshot", "restore", str(self._root / "backup"), *where, *members],
            env=_clean_environment(),
            capture_output=True,
            timeout=20,
            check=True,
        )

    def admit_only(self, prefix: str, *names: str) -> None:
        """From now on a client is who its certificate says, and only these may read and write what has the prefix.

        etcdctl, which shows the server's own certificate, may do all.
        """
        assert self._tls is not None
        self.ctl("role", "add", "node")
        self.ctl("role", "grant-permission", "node", "readwrite", "--prefix=true", prefix)
        for admin in ("root", self._tls.name):
            self.admit(admin, "root")
        for name in names:
            self.admit(name)
        self.ctl("auth", "enable")

    def admit(self, name: str, role: str = "node") -> None:
        """Let in who shows a certificate of this name."""
        self.ctl("user", "add", name, "--no-password")
        self.ctl("user", "grant-role", name, role)

    def ctl(self, *arguments: str) -> str:
        """Run etcdctl against this server, as another client would."""
        tls = self._tls
        shown = [f"--cacert={tls.ca}", f"--cert={tls.cert}", f"--key={tls.key}"] if tls else []
        result = subprocess.run(
            ["etcdctl", "--endpoints", self.endpoint, *shown, *arguments],
            env=_clean_environment() | {"ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return result.stdout

    def _flags(self) -> list[str]:
        scheme = "https" if self._tls else "http"
        client = f"{scheme}://{self.endpoint}"
        flags = {
            "--name": self.name,
            "--data-dir": str(self._root / "data"),
            "--listen-client-urls": client,
            "--advertise-client-urls": client,
            "--listen-peer-urls": self.peer,
            "--initial-advertise-peer-urls": self.peer,
            "--initial-cluster": self.initial_cluster,
            "--listen-metrics-urls": f"http://127.0.0.1:{self._health_port}",
            # Halves the shortest lease that etcd grants, to 1 s.
            "--heartbeat-interval": "50",
            "--election-timeout": "500",
        }
        if self._tls:
            flags |= {
                "--cert-file": str(self._tls.cert),
                "--key-file": str(self._tls.key),
                "--trusted-ca-file": str(self._tls.ca),
            }
        pairs = [part for pair in flags.items() for part in pair]
        return [*pairs, "--client-cert-auth"] if self._tls else pairs

    def wait_healthy(self) -> None:
        """Wait until it serves, which a member of several does once most of them are there."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.alive:
                break
            try:
                with opener.open(f"http://127.0.0.1:{self._health_port}/health", timeout=2) as answer:
                    if b'"true"' in answer.read():
                        return
            except OSError:
                time.sleep(0.05)
        log = (self._root / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"etcd did not become healthy (exit code {self.running().poll()}):\n{log}")

    def remove_files(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


def _clean_environment() -> dict[str, str]:
    """etcd and etcdctl read settings from the environment; those of whoever runs the tests are not meant."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}


def unused_port() -> int:
    """A loopback port on which nothing listens now."""
    return _free_ports(1)[0]


def _free_ports(count: int) -> list[int]:
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", random.choice(_PORTS)))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
