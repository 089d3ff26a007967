"""Real vLLM API servers attached to a worker, and the rough handling of their processes.

Owns starting, asking, killing and starting again. What is asked for, and what must come of it, is the tests' matter.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from blockyard.cli.demo.chat_client import ChatClient, Completion, Options
from blockyard.cli.demo.ports import free_ports
from blockyard.cli.demo.process_table import read_entry
from blockyard.cli.demo.processes import ManagedProcess, Supervisor
from blockyard.cli.demo.vllm_server import VllmServer, engine_core_pids, worker_pids
from support.leader_process import wait_for
from support.worker_process import WorkerProcess

TOKENS = 8
ATTACH_S = 30.0
GONE_S = 30.0
# A request may have to wait for its turn behind others on a machine that does something else besides.
REQUEST_S = 120.0


class Server:
    """One engine of two processes, scheduler and rank, behind an API server; it keeps its name over restarts."""

    def __init__(self, supervisor: Supervisor, name: str, model: Path, socket: Path, gpu_blocks: int) -> None:
        self._supervisor = supervisor
        self._name = name
        self._model = model
        self._gpu_blocks = gpu_blocks
        self._transfer = {
            "kv_connector": "BlockyardConnector",
            "kv_connector_module_path": "blockyard.engine.vllm",
            "kv_role": "kv_both",
            # Both processes may wait for a turn on a busy machine, and a lookup that is late counts as a miss.
            "kv_connector_extra_config": {"socket": str(socket), "acquire_deadline_ms": 1000},
        }
        self._process: ManagedProcess | None = None
        self.url = ""

    async def start(self) -> None:
        """Start, again after a death, and wait until it answers."""
        server = VllmServer(
            name=self._name,
            model=self._model,
            port=free_ports(1)[0],
            gpu_blocks=self._gpu_blocks,
            max_length=(self._gpu_blocks - 1) * 32,
            kv_transfer=self._transfer,
            extra_flags=("--max-num-batched-tokens", "2048"),
        )
        self.url = server.url()
        self._process = server.start(self._supervisor)
        async with self.client() as client:
            await server.wait_ready(self._process, client)

    def client(self) -> ChatClient:
        return ChatClient(self.url)

    @property
    def scheduler_pid(self) -> int:
        (pid,) = engine_core_pids(self._running())
        return pid

    @property
    def rank_pid(self) -> int:
        (pid,) = worker_pids(self._running())
        return pid

    @property
    def alive(self) -> bool:
        return self._running().alive()

    @property
    def whole(self) -> bool:
        """Whether both of its processes live and none is frozen."""
        entries = [read_entry(pid) for pid in engine_core_pids(self._running()) + worker_pids(self._running())]
        return len(entries) == 2 and all(entry is not None and entry.state != "T" for entry in entries)

    def kill_scheduler(self) -> None:
        os.kill(self.scheduler_pid, signal.SIGKILL)

    def kill_rank(self) -> None:
        os.kill(self.rank_pid, signal.SIGKILL)

    def freeze_rank(self) -> None:
        """Stop the rank where it is, in the middle of a copy if it happens to be in one."""
        os.kill(self.rank_pid, signal.SIGSTOP)

    def thaw_rank(self) -> None:
        os.kill(self.rank_pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill what is left of it, if its scheduler or its rank is dead or frozen."""
        if not self.whole:
            self._running().kill()

    def wait_gone(self) -> None:
        """Wait until all of its processes have noticed that one of them is dead."""
        process = self._running()
        wait_for(process.gone, GONE_S, f"{self._name} is gone", process.log_tail)

    def ask(self, *prompts: Sequence[int], tokens: int = TOKENS) -> list[Completion]:
        """Greedy answers, all prompts at once."""
        return asyncio.run(self._ask(prompts, tokens))

    def ask_afresh(self, *prompts: Sequence[int], tokens: int = TOKENS) -> list[Completion]:
        """One prompt after the other, with nothing in the engine's own cache: what is cached comes from the worker."""
        asyncio.run(self._lose_cache())
        return [self.ask(prompt, tokens=tokens)[0] for prompt in prompts]

    async def _ask(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Completion]:
        options = Options(max_tokens=tokens, deadline_s=REQUEST_S)
        async with self.client() as client:
            return await asyncio.gather(*(client.complete(prompt, options) for prompt in prompts))

    async def _lose_cache(self) -> None:
        async with self.client() as client:
            await client.reset_prefix_cache()

    def _running(self) -> ManagedProcess:
        assert self._process is not None, f"{self._name} was never started"
        return self._process


def start_all(*servers: Server) -> None:
    """Start servers at the same time."""

    async def start() -> None:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.start())

    asyncio.run(start())


def wait_attached(worker: WorkerProcess, engines: int) -> None:
    """Wait until so many engines have both their sessions."""

    def attached() -> bool:
        counts = [worker.metric("sessions", role=role, state="live") for role in ("rank", "scheduler")]
        return counts == [engines, engines]

    wait_for(attached, ATTACH_S, f"{engines} engines are attached", lambda: worker.log)
