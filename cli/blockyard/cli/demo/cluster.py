"""Owns everything that the demo starts, where its files lie, and that nothing of it is left at the end.

It never knows what is measured or shown.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blockyard.cli.demo import control_plane
from blockyard.cli.demo.engine import DemoEngine
from blockyard.cli.demo.ports import free_ports
from blockyard.cli.demo.processes import ManagedProcess, ProcessFailed, Supervisor
from blockyard.cli.demo.shared_memory import SharedMemory
from blockyard.cli.demo.stages import Stages

ENGINE_NAMES = ("vllm-a", "vllm-b")
MODEL_DEADLINE_S = 120.0
EXIT_POLL_S = 0.05
ENGINE_GRACE_S = 20.0
# A Unix socket's path may have 107 bytes, vLLM names some by 36, and TMPDIR can be anything.
LONGEST_TEMP_PATH = 40


class DemoCluster:
    """One control plane and two engines. Nothing runs before `start`; `close` must be called in any case."""

    def __init__(self, logs: Path | None = None) -> None:
        temp = tempfile.gettempdir()
        short = temp if len(temp) <= LONGEST_TEMP_PATH else "/tmp"  # noqa: S108
        self.directory = Path(tempfile.mkdtemp(prefix="blockyard-demo-", dir=short))
        self.supervisor = Supervisor(logs or self.directory / "logs")
        # All in one draw: a later one does not know what an earlier one has promised.
        ports = free_ports(control_plane.PORTS + len(ENGINE_NAMES))
        self.plane = control_plane.plan(self.directory, ports[: control_plane.PORTS])
        self._model = self.directory / "model"
        self.engines = [
            DemoEngine(name, self._model, port, self.plane.socket, self.directory)
            for name, port in zip(ENGINE_NAMES, ports[control_plane.PORTS :], strict=True)
        ]
        self._memory = SharedMemory()

    async def start(self, stages: Stages) -> None:
        """Returns when both engines answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._make_model(stages))
            group.create_task(self._start_plane(stages))
        async with asyncio.TaskGroup() as group:
            for engine in self.engines:
                group.create_task(self.start_engine(engine, stages))

    async def start_engine(self, engine: DemoEngine, stages: Stages) -> None:
        """Start one engine, also again after a kill, and wait until it answers."""
        with stages.stage(f"vLLM server {engine.name} on {engine.server.url()}"):
            engine.start(self.supervisor)
            await engine.ready()

    def kill_engine(self, engine: DemoEngine) -> list[int]:
        """`kill -9` of all its processes at once; returns their pids.

        What a killed vLLM leaves in /dev/shm nobody else removes, so it is removed here.
        """
        pids = engine.process.members()
        self._memory.note(pids)
        engine.process.kill()
        self._memory.remove_left()
        return pids

    async def restart_worker(self) -> None:
        """`kill -9` of the worker, then another one in its place."""
        await self.plane.restart_worker(self.supervisor)

    def ended(self) -> list[ManagedProcess]:
        """Processes that ended with an error though nobody asked them to."""
        return self.supervisor.ended()

    def close(self) -> list[str]:
        """Ends all processes and removes all files; returns a line for each thing that is left nevertheless."""
        for engine in self.engines:
            self._memory.note(engine.members())
        try:
            self._end_engines()
            self.supervisor.close()
        except ProcessFailed as error:
            return [str(error)]
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
        return self._left_behind()

    def _end_engines(self) -> None:
        """All at once: each takes seconds to say goodbye."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda engine: engine.end(ENGINE_GRACE_S), self.engines))

    def _left_behind(self) -> list[str]:
        found = [f"process {pid} is left" for pid in self.supervisor.survivors()]
        found += [f"shared memory {path} is left" for path in self._memory.remove_left()]
        if self.directory.exists():
            found.append(f"directory {self.directory} is left")
        return found

    async def _make_model(self, stages: Stages) -> None:
        """In a process of its own: it needs torch, and what is written stops with it."""
        with stages.stage("a tiny Llama with random weights"):
            module = "blockyard.cli.demo.tiny_model"
            process = self.supervisor.start("model", [sys.executable, "-m", module, str(self._model)])
            await _succeeded(process, MODEL_DEADLINE_S)

    async def _start_plane(self, stages: Stages) -> None:
        with stages.stage("etcd, leader and worker"):
            await self.plane.start(self.supervisor)


async def _succeeded(process: ManagedProcess, deadline_s: float) -> None:
    give_up_at = time.monotonic() + deadline_s
    while process.alive():
        if time.monotonic() > give_up_at:
            raise ProcessFailed(f"{process.name} is not done after {deadline_s:.0f} s:\n{process.log_tail()}")
        await asyncio.sleep(EXIT_POLL_S)
    if process.returncode() != 0:
        raise ProcessFailed(f"{process.name} ended with status {process.returncode()}:\n{process.log_tail()}")
