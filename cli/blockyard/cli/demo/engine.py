"""Owns one vLLM engine of the demo with Blockyard attached: its life, its client and the world it stores in.

It never knows what is measured with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.cli.demo.chat_client import ChatClient, Options
from blockyard.cli.demo.processes import ManagedProcess, ProcessFailed, Supervisor
from blockyard.cli.demo.vllm_server import VllmServer
from blockyard.common.identity import Fingerprint

BLOCK_SIZE = 32
BLOCKS_PER_CHUNK = 8
CHUNK_TOKENS = BLOCK_SIZE * BLOCKS_PER_CHUNK
# A request's KV and some more: too few for two long prompts, so the engine alone has to drop what it knows.
GPU_BLOCKS = 320
DTYPE = "bfloat16"
# The default of 50 ms is for machines with a core to spare; here a dozen processes share two, and whoever gives up
# waiting computes for seconds.
ACQUIRE_DEADLINE_MS = 200
# First use of a kernel costs more than the thing measured; too short to fill a chunk, so nothing is stored.
WARM_UP = "a" * (CHUNK_TOKENS // 2)


class DemoEngine:
    """`name` is also the engine id that worker and leader know it by. vLLM leaves sockets in `temp`."""

    def __init__(self, name: str, model: Path, port: int, socket: Path, temp: Path) -> None:
        self.name = name
        self.server = VllmServer(
            name,
            model,
            port,
            gpu_blocks=GPU_BLOCKS,
            block_size=BLOCK_SIZE,
            dtype=DTYPE,
            kv_transfer=_attachment(name, socket),
            extra_env={"TMPDIR": str(temp), "VLLM_RPC_BASE_PATH": str(temp)},
        )
        self.client = ChatClient(self.server.url())
        self._process: ManagedProcess | None = None

    @property
    def process(self) -> ManagedProcess:
        if self._process is None:
            raise ProcessFailed(f"{self.name} was not started")
        return self._process

    def start(self, supervisor: Supervisor) -> None:
        """Start, also again after a kill."""
        self._process = self.server.start(supervisor)

    async def ready(self) -> None:
        """Wait until it serves and has used its kernels once."""
        await self.server.wait_ready(self.process, self.client)
        await self.client.complete(WARM_UP, Options(max_tokens=2))

    def members(self) -> list[int]:
        """Its processes; none before its start."""
        return [] if self._process is None else self._process.members()

    def end(self, grace_s: float) -> None:
        """Ask it to end, then make it."""
        if self._process is not None:
            self._process.terminate(grace_s)

    def world(self) -> Fingerprint:
        """The fingerprint of what it stores, as it said at its start."""
        log = self.process.log_path.read_text(errors="replace")
        found = re.search(r"Blockyard: world ([0-9a-f]{64}) ", log)
        if found is None:
            raise ProcessFailed(f"{self.name} did not name its world; its last lines:\n{self.process.log_tail()}")
        return bytes.fromhex(found[1])


def _attachment(name: str, socket: Path) -> Mapping[str, Any]:
    settings = {"socket": str(socket), "chunk_tokens": CHUNK_TOKENS, "acquire_deadline_ms": ACQUIRE_DEADLINE_MS}
    return {
        "kv_connector": "BlockyardConnector",
        "kv_connector_module_path": "blockyard.engine.vllm",
        "kv_role": "kv_both",
        "engine_id": name,
        "kv_connector_extra_config": settings,
    }
