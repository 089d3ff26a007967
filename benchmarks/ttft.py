"""Question: what does a hit in the host pool cost over the engine's own prefix-cache hit, and save over computing?

One engine with a worker, one prompt of about 6,000 tokens a round, three variants in turn (A B C, A B C, …):
computed (a fresh prompt), the engine's own hit (the same prompt again), the host hit (again, after the engine's own
cache was reset). The prompt's length is chosen so that both hits have equal cached tokens; rounds where they differ
are refused. A second engine without Blockyard runs the fresh prompts too: CPU-seconds where nothing is reused.

    .venv/bin/python benchmarks/ttft.py --rounds 12 --dtype float32
    .venv/bin/python benchmarks/ttft.py --rounds 12 --model DIR --ranks 2

Another model needs a vocabulary of at least 250 tokens and room for the prompt.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from blockyard.cli.demo.chat_client import ChatClient, Completion, Options
from blockyard.cli.demo.ports import free_ports
from blockyard.cli.demo.processes import ManagedProcess, Supervisor
from blockyard.cli.demo.tiny_model import cached_model
from blockyard.cli.demo.vllm_server import VllmServer

CHUNK_TOKENS = 256
BLOCK_TOKENS = 32


@dataclass
class Samples:
    """Times to first token in seconds, by variant."""

    computed: list[float] = field(default_factory=list)
    prefix_hit: list[float] = field(default_factory=list)
    host_hit: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    cached_tokens: set[int] = field(default_factory=set)
    cpu_with: float = 0.0
    cpu_alone: float = 0.0

    def report(self) -> dict[str, object]:
        """Medians, spread and the ratios that the project's goals name."""
        medians = {name: statistics.median(times) for name, times in self._series()}
        over = [host / own for host, own in zip(self.host_hit, self.prefix_hit, strict=True)]
        return {
            "rounds": len(self.host_hit),
            "cached_tokens": sorted(self.cached_tokens),
            "median_s": medians,
            "quartiles_s": {name: statistics.quantiles(times, n=4) for name, times in self._series()},
            "host_hit_over_prefix_hit_ms": 1000 * (medians["host_hit"] - medians["prefix_hit"]),
            "ratios": {
                "host_hit_over_prefix_hit": medians["host_hit"] / medians["prefix_hit"],
                "host_hit_over_prefix_hit_paired": statistics.median(over),
                "recompute_over_host_hit": medians["computed"] / medians["host_hit"],
                "nothing_reused_ttft_with_over_alone": medians["computed"] / medians["alone"],
                "nothing_reused_cpu_with_over_alone": self.cpu_with / self.cpu_alone,
            },
        }

    def _series(self) -> Iterable[tuple[str, list[float]]]:
        names = ("computed", "prefix_hit", "host_hit", "alone")
        return [(name, getattr(self, name)) for name in names]


def cpu_seconds(processes: Iterable[ManagedProcess]) -> float:
    """User and system time that these processes and what they started have used so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for process in processes:
        for pid in process.members():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def fresh_prompt(seed: int, tokens: int) -> list[int]:
    """Token ids of the tiny model's byte vocabulary; no two seeds share a block."""
    # Of a number, Random takes the absolute value.
    draw = random.Random(str(seed))
    return [draw.randrange(3, 250) for _ in range(tokens)]


class Experiment:
    """Two engines, one of them attached, and the rounds."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, supervisor: Supervisor) -> None:
        self._arguments = arguments
        self._folder = folder
        self._supervisor = supervisor
        self._samples = Samples()
        # Both hits then end at the same token: the last whole chunk is also the last whole block but the tail's.
        self._length = arguments.chunks * CHUNK_TOKENS + BLOCK_TOKENS // 2

    async def run(self) -> Samples:
        """Start everything, run the rounds, return what was measured."""
        model = self._arguments.model or cached_model(self._folder / "models")
        socket = self._folder / "worker.sock"
        command = [sys.executable, "-m", "blockyard.cli.main", "worker", "--socket", str(socket)]
        command += ["--host-pool", "1GiB", "--log-level", "warning"]
        worker = self._supervisor.start("worker", command, {})
        transfer = {
            "kv_connector": "BlockyardConnector",
            "kv_connector_module_path": "blockyard.engine.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": str(socket), "verify_host": self._arguments.verify_host},
        }
        ports = free_ports(2)
        dtype = self._arguments.dtype
        ranks = ("--tensor-parallel-size", str(self._arguments.ranks))
        attached = VllmServer("attached", model, ports[0], dtype=dtype, kv_transfer=transfer, extra_flags=ranks)
        alone = VllmServer("alone", model, ports[1], dtype=dtype, extra_flags=ranks)
        processes = [server.start(self._supervisor) for server in (attached, alone)]
        async with ChatClient(attached.url()) as ours, ChatClient(alone.url()) as theirs:
            await attached.wait_ready(processes[0], ours)
            await alone.wait_ready(processes[1], theirs)
            with Progress() as progress:
                for number in progress.track(range(-2, self._arguments.rounds), description="rounds"):
                    await self._round(number, ours, theirs, [worker, processes[0]], processes[1:])
        return self._samples

    async def _round(
        self,
        number: int,
        ours: ChatClient,
        theirs: ChatClient,
        with_blockyard: list[ManagedProcess],
        without: list[ManagedProcess],
    ) -> None:
        prompt = fresh_prompt(number, self._length)
        spent = cpu_seconds(without)
        alone = await self._ask(theirs, prompt)
        cpu_alone = cpu_seconds(without) - spent
        spent = cpu_seconds(with_blockyard)
        computed = await self._ask(ours, prompt)
        cpu_with = cpu_seconds(with_blockyard) - spent
        own = await self._ask(ours, prompt)
        await ours.reset_prefix_cache()
        host = await self._ask(ours, prompt)
        if computed.cached_tokens or alone.cached_tokens:
            raise SystemExit(f"not fresh: {computed.cached_tokens} and {alone.cached_tokens} tokens were cached")
        if own.cached_tokens != host.cached_tokens:
            raise SystemExit(f"hits differ: own {own.cached_tokens} tokens, host {host.cached_tokens}")
        if number < 0:
            return
        samples = self._samples
        samples.alone.append(alone.first_token_s)
        samples.computed.append(computed.first_token_s)
        samples.prefix_hit.append(own.first_token_s)
        samples.host_hit.append(host.first_token_s)
        samples.cached_tokens.add(host.cached_tokens)
        samples.cpu_with += cpu_with
        samples.cpu_alone += cpu_alone

    async def _ask(self, client: ChatClient, prompt: list[int]) -> Completion:
        """One token is enough: what is measured is the first. Stores are over when this returns."""
        completion = await client.complete(prompt, Options(max_tokens=1))
        await asyncio.sleep(self._arguments.settle)
        return completion


def shown(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings as the report names them: a model by its folder's name, wherever that lies."""
    model = arguments.model.name if arguments.model else "the demo's"
    return vars(arguments) | {"json": None, "model": model}


def main() -> None:
    """Run the experiment and print its report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="counted rounds; two more warm up")
    parser.add_argument("--chunks", type=int, default=24, help="chunks of 256 tokens in the prompt")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16, weights and KV")
    parser.add_argument("--model", type=Path, help="another model than the demo's tiny one")
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel ranks of each engine")
    parser.add_argument("--settle", type=float, default=0.3, help="seconds after a request, in which its stores end")
    parser.add_argument("--verify-host", default="always", choices=("off", "sample", "always"))
    parser.add_argument("--json", type=Path, help="write the report here too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="by-ttft-") as folder:
        with Supervisor(Path(folder) / "logs") as supervisor:
            samples = asyncio.run(Experiment(arguments, Path(folder), supervisor).run())
        report = {"settings": shown(arguments)} | samples.report()
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
