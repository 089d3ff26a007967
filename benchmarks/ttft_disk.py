"""Question: what does a hit on disk alone cost over a host hit, and save over computing?

One engine, and a worker with a disk directory. Three variants in turn (A B C, A B C, …): computed (a fresh prompt),
the host hit (again, after the engine's own cache was reset), the disk hit (again, after the worker was killed and
started anew, so that its pool is empty, and the page cache was told to drop its files). A disk hit that came too late
for the engine's deadline is counted and asked again.

    .venv/bin/python benchmarks/ttft_disk.py --rounds 10 --dtype bfloat16
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.progress import Progress

from blockyard.cli.demo.chat_client import ChatClient, Completion, Options
from blockyard.cli.demo.ports import free_ports
from blockyard.cli.demo.processes import ManagedProcess, Supervisor
from blockyard.cli.demo.tiny_model import cached_model
from blockyard.cli.demo.vllm_server import VllmServer
from blockyard.cli.demo.worker_client import WorkerClient, WorkerSilent
from ttft import BLOCK_TOKENS, CHUNK_TOKENS, fresh_prompt

MOST_LATE = 3
"""Disk hits of a round that may come too late."""


class Experiment:
    """One engine and its worker, and the rounds."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, supervisor: Supervisor) -> None:
        self._arguments = arguments
        self._folder = folder
        self._supervisor = supervisor
        self._length = arguments.chunks * CHUNK_TOKENS + BLOCK_TOKENS // 2
        self._times: dict[str, list[float]] = defaultdict(list)
        self._late = 0
        self._port, self._metrics_port = free_ports(2)
        self._disk = folder / "disk"
        self._disk.mkdir()

    async def run(self) -> dict[str, object]:
        """Start everything, run the rounds, return the report."""
        model = cached_model(self._folder / "models")
        transfer = {
            "kv_connector": "BlockyardConnector",
            "kv_connector_module_path": "blockyard.engine.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": str(self._folder / "worker.sock")},
        }
        self._worker = self._start_worker()
        server = VllmServer("engine", model, self._port, dtype=self._arguments.dtype, kv_transfer=transfer)
        process = server.start(self._supervisor)
        async with ChatClient(server.url()) as engine:
            await server.wait_ready(process, engine)
            with Progress() as progress:
                for number in progress.track(range(-1, self._arguments.rounds), description="rounds"):
                    await self._round(number, engine)
        return self._report()

    async def _round(self, number: int, engine: ChatClient) -> None:
        prompt = fresh_prompt(number, self._length)
        computed = await self._ask(engine, prompt)
        await engine.reset_prefix_cache()
        host = await self._ask(engine, prompt)
        for _ in range(1 + MOST_LATE):
            await self._lose_host(engine)
            disk = await self._ask(engine, prompt)
            if disk.cached_tokens == host.cached_tokens:
                break
            self._late += number >= 0
        else:
            raise SystemExit(f"a disk hit never came in time: {disk.cached_tokens} of {host.cached_tokens} tokens")
        if host.cached_tokens != self._arguments.chunks * CHUNK_TOKENS or computed.cached_tokens:
            raise SystemExit(f"not the hits that were meant: {computed.cached_tokens}, {host.cached_tokens}")
        if number >= 0:
            for name, answer in (("computed", computed), ("host_hit", host), ("disk_hit", disk)):
                self._times[name].append(answer.first_token_s)

    async def _lose_host(self, engine: ChatClient) -> None:
        """What is left of the prompt is on disk, and not in the page cache."""
        async with WorkerClient(f"http://127.0.0.1:{self._metrics_port}") as numbers:
            copies = await numbers.all_written()
        self._worker.kill()
        for file in self._disk.rglob("*"):
            if file.is_file():
                drop_from_page_cache(file)
        self._worker = self._start_worker()
        async with WorkerClient(f"http://127.0.0.1:{self._metrics_port}") as numbers:
            await self._worker.wait_ready(lambda: answers(numbers), 30.0)
            await numbers.copies_found(copies)
            await numbers.engines_attached(1)
        await engine.reset_prefix_cache()
        await asyncio.sleep(self._arguments.settle)

    async def _ask(self, engine: ChatClient, prompt: list[int]) -> Completion:
        completion = await engine.complete(prompt, Options(max_tokens=1))
        await asyncio.sleep(self._arguments.settle)
        return completion

    def _start_worker(self) -> ManagedProcess:
        command = [sys.executable, "-m", "blockyard.cli.main", "worker", "--socket", str(self._folder / "worker.sock")]
        command += ["--host-pool", "512MiB", "--disk", f"{self._disk}:4GiB", "--disk-floor", "0B"]
        command += ["--metrics-listen", f"127.0.0.1:{self._metrics_port}", "--log-level", "warning"]
        return self._supervisor.start("worker", command, {})

    def _report(self) -> dict[str, object]:
        times = self._times
        paired = [disk / host for disk, host in zip(times["disk_hit"], times["host_hit"], strict=True)]
        medians = {name: statistics.median(values) for name, values in times.items()}
        return {
            "rounds": len(paired),
            "median_s": medians,
            "quartiles_s": {name: statistics.quantiles(values, n=4) for name, values in times.items()},
            "too_late": self._late,
            "ratios": {
                "disk_hit_over_host_hit_paired": statistics.median(paired),
                "recompute_over_disk_hit": medians["computed"] / medians["disk_hit"],
                "recompute_over_host_hit": medians["computed"] / medians["host_hit"],
            },
        }


async def answers(numbers: WorkerClient) -> bool:
    """Whether the worker serves its numbers."""
    try:
        await numbers.copies_found(0)
    except WorkerSilent:
        return False
    return True


def drop_from_page_cache(file: Path) -> None:
    """After this its bytes are on the device alone."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def main() -> None:
    """Run the experiment and print its report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds; one more warms up")
    parser.add_argument("--chunks", type=int, default=24, help="chunks of 256 tokens in the prompt")
    parser.add_argument("--dtype", default="bfloat16", help="float32 or bfloat16, weights and KV")
    parser.add_argument("--settle", type=float, default=0.5, help="seconds after a request, in which its stores end")
    parser.add_argument("--folder", type=Path, help="where the disk directory is made (default: the system's own)")
    parser.add_argument("--json", type=Path, help="write the report here too")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="by-ttft-", dir=arguments.folder) as folder,
        Supervisor(Path(folder) / "logs") as supervisor,
    ):
        report = asyncio.run(Experiment(arguments, Path(folder), supervisor).run())
    settings = vars(arguments) | {"json": None, "folder": None}
    text = json.dumps({"settings": settings} | report, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
