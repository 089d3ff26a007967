"""Owns how a vLLM API server is started on a CPU: flags, environment, readiness. It never knows what cache is
attached.

The settings keep two servers comparable on a small machine: one OpenMP thread each, whatever connector is
attached (vLLM reserves a core for a connector otherwise, and then neither times nor greedy tokens compare),
no compilation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.cli.demo.chat_client import ChatClient
from blockyard.cli.demo.ports import LOOPBACK
from blockyard.cli.demo.process_table import title
from blockyard.cli.demo.processes import ManagedProcess, Progress, Supervisor

READY_DEADLINE_S = 240.0
# With bfloat16, rounding alone changes a greedy token now and then when a prompt is computed in other pieces, as a
# prefix hit does; with float32 it does not, while one corrupted block of keys and values still changes them all.
DTYPE = "float32"
# As vLLM titles its processes; also the names under which `ps` shows them.
ENGINE_CORE_TITLE = "VLLM::EngineCore"
WORKER_TITLE = "VLLM::Worker"

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # Gives `POST /reset_prefix_cache`.
    "VLLM_SERVER_DEV_MODE": "1",
    # Eager mode still compiles the log-probability kernel at its first use, which takes longer than a start.
    "TORCHDYNAMO_DISABLE": "1",
    # Said aloud, whatever the caller's own environment says: scheduler and ranks in processes of their own, and the
    # log lines that tell an engine's world and whether it attached.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    # Empty means unset: without bytecode files each of the server's processes compiles all its imports again.
    "PYTHONDONTWRITEBYTECODE": "",
}


@dataclass(frozen=True, slots=True)
class VllmServer:
    """One server to be started; few `gpu_blocks` make its own prefix cache small enough to need another."""

    name: str
    model: Path
    port: int
    gpu_blocks: int = 512
    block_size: int = 32
    max_length: int = 8192
    dtype: str = DTYPE
    served_name: str = "tiny"
    kv_transfer: Mapping[str, Any] | None = None
    extra_flags: tuple[str, ...] = ()
    extra_env: Mapping[str, str] = field(default_factory=dict)

    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def command(self) -> list[str]:
        flags: list[object] = ["--model", self.model, "--served-model-name", self.served_name]
        flags += ["--host", LOOPBACK, "--port", self.port]
        flags += ["--enforce-eager", "--dtype", self.dtype, "--max-model-len", self.max_length]
        flags += ["--block-size", self.block_size, "--num-gpu-blocks-override", self.gpu_blocks]
        flags += ["--prefix-caching-hash-algo", "sha256_cbor", "--enable-prompt-tokens-details"]
        flags += ["--disable-uvicorn-access-log"]
        if self.kv_transfer is not None:
            flags += ["--kv-transfer-config", json.dumps(self.kv_transfer)]
        module = "vllm.entrypoints.openai.api_server"
        return [sys.executable, "-m", module, *(str(flag) for flag in flags), *self.extra_flags]

    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, **self.extra_env}

    def start(self, supervisor: Supervisor) -> ManagedProcess:
        return supervisor.start(self.name, self.command(), self.environment())

    async def wait_ready(
        self,
        process: ManagedProcess,
        client: ChatClient,
        progress: Progress | None = None,
        deadline_s: float = READY_DEADLINE_S,
    ) -> float:
        return await process.wait_ready(client.healthy, deadline_s, progress)


def engine_core_pids(process: ManagedProcess) -> list[int]:
    """The scheduler process of a server; it outlives a killed API server for a moment, hence the session."""
    return _titled(process, ENGINE_CORE_TITLE)


def worker_pids(process: ManagedProcess) -> list[int]:
    """The processes that hold the KV cache, one per rank."""
    return _titled(process, WORKER_TITLE)


def _titled(process: ManagedProcess, prefix: str) -> list[int]:
    return [pid for pid in process.members() if title(pid).startswith(prefix)]
