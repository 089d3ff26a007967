"""Owns how etcd, the leader and the worker of the demo are started and known to be ready. It never knows
engines.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from blockyard.cli.demo.ports import LOOPBACK
from blockyard.cli.demo.processes import ManagedProcess, ProcessFailed, Supervisor

CLUSTER = "demo"
NODE = "node-1"
HOST_POOL = "512MiB"
DISK = "512MiB"
DISK_SEGMENT = "64MiB"
PORTS = 4
READY_DEADLINE_S = 60.0
PROBE_DEADLINE_S = 2.0


@dataclass(slots=True)
class ControlPlane:
    """Addresses and places; nothing runs until `start`."""

    socket: Path
    disk: Path
    etcd_data: Path
    etcd_port: int
    etcd_peer_port: int
    leader_port: int
    worker_port: int
    worker: ManagedProcess | None = None
    """The worker that runs, once started."""

    @property
    def leader_url(self) -> str:
        return f"http://{LOOPBACK}:{self.leader_port}"

    @property
    def worker_url(self) -> str:
        return f"http://{LOOPBACK}:{self.worker_port}"

    async def start(self, supervisor: Supervisor) -> None:
        """etcd first; leader and worker then need no order between them."""
        etcd = supervisor.start("etcd", self._etcd_command())
        await _wait_ready(etcd, f"http://{LOOPBACK}:{self.etcd_port}/health")
        leader = supervisor.start("leader", _blockyard("leader", self._leader_settings()))
        self.disk.mkdir(exist_ok=True)
        await self.start_worker(supervisor)
        await _wait_ready(leader, f"{self.leader_url}/readyz")

    async def start_worker(self, supervisor: Supervisor) -> None:
        """Start it, also again after a kill, and wait until it serves."""
        self.worker = supervisor.start("worker", _blockyard("worker", self._worker_settings()))
        await _wait_ready(self.worker, f"{self.worker_url}/readyz")

    async def restart_worker(self, supervisor: Supervisor) -> None:
        """`kill -9`, then another one in its place, with an empty pool and the same disk."""
        assert self.worker is not None, "started before"
        self.worker.kill()
        await self.start_worker(supervisor)

    def _etcd_command(self) -> list[str]:
        clients = f"http://{LOOPBACK}:{self.etcd_port}"
        peers = f"http://{LOOPBACK}:{self.etcd_peer_port}"
        flags = {
            "name": "demo",
            "data-dir": str(self.etcd_data),
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"demo={peers}",
        }
        return [etcd_program(), *(word for name, value in flags.items() for word in (f"--{name}", value))]

    def _leader_settings(self) -> dict[str, str]:
        return {
            "node-id": "leader",
            "etcd": f"{LOOPBACK}:{self.etcd_port}",
            "listen": f"{LOOPBACK}:0",
            "http-listen": f"{LOOPBACK}:{self.leader_port}",
        }

    def _worker_settings(self) -> dict[str, str]:
        return {
            "node-id": NODE,
            "etcd": f"{LOOPBACK}:{self.etcd_port}",
            "socket": str(self.socket),
            "host-pool": HOST_POOL,
            "disk": f"{self.disk}:{DISK}",
            "disk-segment": DISK_SEGMENT,
            "disk-floor": "0B",
            "metrics-listen": f"{LOOPBACK}:{self.worker_port}",
        }


def plan(directory: Path, ports: Sequence[int]) -> ControlPlane:
    """A control plane in a directory of its own, on as many free ports as `PORTS`."""
    etcd, peer, leader, worker = ports
    return ControlPlane(directory / "worker.sock", directory / "disk", directory / "etcd", etcd, peer, leader, worker)


def etcd_program() -> str:
    """etcd from PATH, else the one that the `demo` extra installs beside Python."""
    beside = Path(sys.executable).with_name("etcd")
    found = shutil.which("etcd") or (str(beside) if beside.exists() else None)
    if found is None:
        raise ProcessFailed(
            "etcd is not on PATH and not beside this Python; "
            "right: apt-get install etcd-server, or pip install 'blockyard[demo]'"
        )
    return found


def _blockyard(role: str, settings: dict[str, str]) -> list[str]:
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "blockyard.cli.main", role, "--cluster", CLUSTER, "--insecure", *flags]


async def _wait_ready(process: ManagedProcess, url: str) -> None:
    timeout = aiohttp.ClientTimeout(total=PROBE_DEADLINE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def answers() -> bool:
            try:
                async with session.get(url) as response:
                    return response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False

        await process.wait_ready(answers, READY_DEADLINE_S)
