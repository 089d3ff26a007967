"""The processes of a scale run: etcd, leaders, real workers, a few engines, generators. Owns how each is started and
known to be up, and what it costs by /proc; what is measured with them is not its matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from blockyard.cli.demo.control_plane import etcd_program
from blockyard.cli.demo.ports import LOOPBACK, free_ports
from blockyard.cli.demo.processes import ManagedProcess, ProcessFailed, Supervisor
from scale.generator import Task
from scale.leader_face import LeaderFace

CLUSTER = "scale"
ANSWER_SECONDS = 120.0
START_SECONDS = 60.0
FILL_SECONDS = 600.0
POLL_SECONDS = 0.1
LAST_WORDS_SECONDS = 1.0

_BENCHMARKS = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct, frozen=True):
    """What a process has used: CPU-seconds so far, resident bytes now."""

    cpu: float
    resident: int

    @staticmethod
    def of(pid: int) -> Usage:
        """As /proc says; zero for a process that is gone."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            return Usage(0.0, 0)
        return Usage((int(fields[11]) + int(fields[12])) / _TICKS, pages * os.sysconf("SC_PAGE_SIZE"))


def machine_cpu() -> float:
    """CPU-seconds that all processes of this machine have used so far."""
    user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split(None, 8)[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


class Controlled:
    """A process that takes commands: one JSON object a line, each answered by one."""

    def __init__(self, process: ManagedProcess, connection: socket.socket) -> None:
        self.process = process
        self._connection = connection
        self._lines = connection.makefile("rw", encoding="utf-8")

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        """One command and its answer."""
        self._lines.write(json.dumps({"do": do, **values}) + "\n")
        self._lines.flush()
        return self.answer()

    def answer(self, timeout: float = ANSWER_SECONDS) -> dict[str, Any]:
        """The next line; raises ProcessFailed, with the log's end, when there is none in time."""
        self._connection.settimeout(timeout)
        try:
            answer: dict[str, Any] = json.loads(self._lines.readline() or '{"error": "it has ended"}')
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        if "error" in answer:
            # What ends a process is the last that it says.
            time.sleep(LAST_WORDS_SECONDS)
            raise ProcessFailed(f"{self.process.name}: {answer['error']}\n{self.process.log_tail()}")
        return answer


class ScaleCluster:
    """`with ScaleCluster() as cluster:` has etcd and two leaders; nothing is left of it afterwards."""

    def __init__(self, leader_lease: int, favour: int = 0) -> None:
        self._stack = ExitStack()
        self._lease = leader_lease
        self._favour = favour
        self.leaders: dict[str, ManagedProcess] = {}
        self.faces: dict[str, LeaderFace] = {}
        self.real: dict[str, ManagedProcess] = {}
        self.engines: list[Controlled] = []
        self.generators: list[Controlled] = []

    def __enter__(self) -> ScaleCluster:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="by-")))
            self._supervisor = stack.enter_context(Supervisor(self._folder / "log"))
            stack.callback(self._end_quickly)
            self._start_etcd()
            for name in ("leader-a", "leader-b"):
                self.start_leader(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_leader(self, name: str) -> None:
        """A leader process on ports of its own, which has to win the election to lead."""
        link, http = free_ports(2)
        flags = {"listen": f"{LOOPBACK}:{link}", "http-listen": f"{LOOPBACK}:{http}", "node-id": name}
        flags |= {"lease-ttl": f"{self._lease}s", "log-level": "warning"}
        self.leaders[name] = self._blockyard(name, "leader", flags)
        favour(self.leaders[name].pid, self._favour)
        self.faces[name] = face = LeaderFace(LOOPBACK, http)
        wait(face.answers, START_SECONDS, f"{name} answers", self.leaders[name])

    def leading(self, timeout: float = START_SECONDS) -> str:
        """The leader that answers as such, once one does."""
        found: list[str] = []

        def leads() -> bool:
            found[:] = [name for name, process in self.leaders.items() if process.alive() and self.faces[name].leads()]
            return len(found) == 1

        wait(leads, timeout, "one leads")
        return found[0]

    def start_real(self, count: int) -> None:
        """Worker processes with the smallest pool that does, all at once; returns when each is registered."""
        for number in range(count):
            name = f"real-{number:04}"
            flags = {"node-id": name, "socket": str(self.socket(name)), "metrics-listen": f"{LOOPBACK}:0"}
            flags |= {"host-pool": "4MiB", "slab-size": "1MiB", "log-level": "warning"}
            self.real[name] = self._blockyard(name, "worker", flags)

    def socket(self, real: str) -> Path:
        """Where engines of a real worker attach."""
        return self._folder / f"{real}.sock"

    def start_engine(self, real: str) -> Controlled:
        """A light engine, attached to a real worker."""
        name = f"engine-{len(self.engines)}"
        command = [sys.executable, "-m", "blockyard.engine.light.process"]
        engine = self._controlled(name, command, str(self.socket(real)), name, "odd")
        engine.answer()
        self.engines.append(engine)
        return engine

    def start_generators(self, tasks: Sequence[Task]) -> None:
        """Processes that stand for many workers each; these link once told to."""
        folders = [str(_BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(folders)}
        command = [sys.executable, "-m", "scale.generator"]
        for task in tasks:
            told = msgspec.json.encode(msgspec.structs.replace(task, etcd=self.etcd, cluster=CLUSTER)).decode()
            generator = self._controlled(task.name, command, told, environment=environment)
            favour(generator.process.pid, self._favour // 2)
            self.generators.append(generator)
        for generator in self.generators:
            generator.answer(FILL_SECONDS)

    def usage(self) -> dict[str, Usage]:
        """By role, CPU and memory of all its processes; leaders by name."""
        roles: dict[str, list[ManagedProcess]] = {name: [process] for name, process in self.leaders.items()}
        roles |= {
            "etcd": [self._etcd],
            "real workers": list(self.real.values()),
            "engines": [engine.process for engine in self.engines],
            "generators": [generator.process for generator in self.generators],
        }
        return {role: _sum(processes) for role, processes in roles.items()}

    def check_alive(self) -> None:
        """Raises ProcessFailed if one has ended that was not killed by the run."""
        watched = [self._etcd, *self.real.values(), *(one.process for one in (*self.engines, *self.generators))]
        for process in watched:
            if not process.alive():
                raise ProcessFailed(f"{process.name} ended with {process.returncode()}\n{process.log_tail()}")

    def end_leader(self, name: str) -> None:
        """Kill it and forget it."""
        self.leaders.pop(name).kill()
        self.faces.pop(name).close()

    def _start_etcd(self) -> None:
        client, peer = (f"{LOOPBACK}:{port}" for port in free_ports(2))
        urls = {
            "--name": "scale",
            "--data-dir": str(self._folder / "etcd"),
            "--listen-client-urls": f"http://{client}",
            "--advertise-client-urls": f"http://{client}",
            "--listen-peer-urls": f"http://{peer}",
            "--initial-advertise-peer-urls": f"http://{peer}",
            "--initial-cluster": f"scale=http://{peer}",
        }
        self.etcd = client
        self._etcd = self._supervisor.start("etcd", [etcd_program(), *(part for pair in urls.items() for part in pair)])
        favour(self._etcd.pid, self._favour)
        face = LeaderFace(*_split(client))
        wait(lambda: face.answers("/health"), START_SECONDS, "etcd is healthy", self._etcd)
        face.close()

    def _blockyard(self, name: str, role: str, flags: Mapping[str, str]) -> ManagedProcess:
        words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        program = ["-m", "blockyard.cli.main", role, "--cluster", CLUSTER, "--insecure", "--etcd", self.etcd]
        return self._supervisor.start(name, [sys.executable, *program, *words])

    def _controlled(
        self, name: str, command: list[str], *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Controlled:
        """Start what connects to a control socket, the first of its arguments."""
        control = self._folder / f"{name}.control"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(control))
            listener.listen(1)
            listener.settimeout(START_SECONDS)
            process = self._supervisor.start(name, [*command, str(control), *arguments], environment)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                raise ProcessFailed(f"{name} does not report\n{process.log_tail()}") from None
        self._stack.callback(connection.close)
        return Controlled(process, connection)

    def _end_quickly(self) -> None:
        """All at once: one after the other, each with its goodbyes, would take minutes."""
        mine = [*self.real.values(), *(one.process for one in (*self.engines, *self.generators))]
        for process in mine:
            if process.alive():
                os.kill(process.pid, 9)


def favour(pid: int, by: int) -> None:
    """Prefer a process by so many nice levels; where the kernel shares time between sessions, prefer its session."""
    if by:
        os.setpriority(os.PRIO_PROCESS, pid, -by)
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/{pid}/autogroup").write_text(str(-by))


def wait(found: Callable[[], bool], timeout: float, what: str, process: ManagedProcess | None = None) -> float:
    """Ask until it is true; returns the seconds it took, raises ProcessFailed after `timeout` of them."""
    begun = time.monotonic()
    while not found():
        ended = process is not None and not process.alive()
        if ended or time.monotonic() - begun > timeout:
            tail = process.log_tail() if process is not None else ""
            raise ProcessFailed(f"not within {timeout:g} s: {what}\n{tail}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - begun


def _sum(processes: list[ManagedProcess]) -> Usage:
    used = [Usage.of(process.pid) for process in processes]
    return Usage(sum(one.cpu for one in used), sum(one.resident for one in used))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
