"""Question: what does the attachment cost the scheduler thread, and how fast do jobs move bytes end to end?

A real worker process and one engine's two clients, as inside vLLM but without it. Rounds are interleaved:
acquire of 50 and of 500 chunks (send, answer, release; wall clock as the scheduler thread sees it), a whole store
job and a whole load job of 24 chunks of 2 MiB (resolve, copy, done; verified and not) against one memcpy of the same
bytes, by wall clock and by CPU time of the copying process.

    .venv/bin/python benchmarks/attachment.py --rounds 30
    .venv/bin/python benchmarks/attachment.py --attach-pools 1GiB,16GiB

The second form asks only how long an engine takes to attach to pools of these sizes.
"""

import argparse
import contextlib
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

from blockyard.common.messages.attach import GroupShape, Run
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.copies.base import GroupPages, PagedTensor
from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.identity import EngineIdentity
from blockyard.engine.jobs import BlockRange, CopyJob, CopyKind, CopyResult
from blockyard.engine.rank_client import RankClient, Verify
from blockyard.engine.scheduler_client import Grant, SchedulerClient

PAGE = 16 << 10
PAGES = 16
TENSORS = 8
CHUNKS = 24
START_SECONDS = 30.0
ANSWER_SECONDS = 5.0

_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcpy.restype = None


class Engine:
    """Scheduler and rank clients of one engine with random blocks."""

    def __init__(self, socket: Path, name: str, world: bytes, page: int, verify: Verify) -> None:
        blocks = CHUNKS * PAGES
        tensors = [torch.randint(-128, 128, (blocks, page), dtype=torch.int8) for _ in range(TENSORS)]
        group = GroupPages(0, [PagedTensor(tensor, page) for tensor in tensors], PAGES)
        identity = EngineIdentity(name, "bench", world)
        self.bytes = group.area_bytes * CHUNKS
        self.rank = RankClient(
            socket, identity, 0, 1, [GroupShape(0, 256, group.area_bytes)], CpuCopier([group]), verify
        )
        self.scheduler = SchedulerClient(socket, identity, [GroupShape(0, 256, 0)])
        self._job = 0

    def attach(self, pause: float = 0.01) -> None:
        """Both sessions stand when this returns."""
        self.rank.start()
        self.scheduler.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.rank.state == self.scheduler.state == "attached":
            if time.monotonic() > deadline:
                raise SystemExit(f"not attached: {self.rank.detached_detail} {self.scheduler.detached_detail}")
            time.sleep(pause)

    def acquire(self, keys: list[bytes]) -> Grant:
        """Pin what is there of these."""
        seq = self.scheduler.acquire("request", [Run(0, 0, b"", b"".join(keys))])
        grant = self.scheduler.grant(seq, ANSWER_SECONDS) if seq is not None else None
        if grant is None:
            raise SystemExit("the worker did not answer")
        return grant

    def store(self, keys: list[bytes]) -> CopyResult:
        """A whole store job."""
        self._job += 1
        self.scheduler.fill(self._job, "request", [Run(0, 0, b"", b"".join(keys))])
        return self._run("store", keys, 0)

    def load(self, keys: list[bytes], grant: Grant) -> CopyResult:
        """A whole load job of pinned keys."""
        self._job += 1
        return self._run("load", keys, grant.number)

    def _run(self, kind: CopyKind, keys: list[bytes], grant: int) -> CopyResult:
        ranges = [BlockRange(list(range(at * PAGES, (at + 1) * PAGES))) for at in range(len(keys))]
        self.rank.submit(CopyJob(self._job, kind, keys, ranges, grant))
        results: list[CopyResult] = []
        while not results:
            results = self.rank.finished(ANSWER_SECONDS)
        if any(state is not CopyState.OK for state in results[0].states):
            raise SystemExit(f"{kind} did not end well: {[state.label for state in results[0].states]}")
        return results[0]

    def close(self) -> None:
        """End both sessions."""
        self.scheduler.close()
        self.rank.close()


def keys_of(prefix: int, count: int) -> list[bytes]:
    """Keys no other prefix has."""
    return [prefix.to_bytes(16, "big") + number.to_bytes(16, "big") for number in range(count)]


class Bench:
    """All measurements of one run, by name, in seconds."""

    def __init__(self, socket: Path) -> None:
        self._small = Engine(socket, "small", b"s" * 32, 64, "off")
        self._plain = Engine(socket, "plain", b"p" * 32, PAGE, "off")
        self._verified = Engine(socket, "verified", b"v" * 32, PAGE, "always")
        self._from = torch.ones(self._plain.bytes, dtype=torch.int8)
        self._to = torch.ones(self._plain.bytes, dtype=torch.int8)
        self._wall: dict[str, list[float]] = defaultdict(list)
        self._cpu: dict[str, list[float]] = defaultdict(list)
        for engine in (self._small, self._plain, self._verified):
            engine.attach()
        self._many = keys_of(1 << 64, 500)
        for start in range(0, len(self._many), CHUNKS):
            self._small.store(self._many[start : start + CHUNKS])
        time.sleep(1.0)

    def round(self, number: int) -> None:
        """Every variant once, in turn."""
        for count in (50, 500):
            self._acquire(count)
        self._memcpy()
        for name, engine in (("", self._plain), ("_verified", self._verified)):
            keys = keys_of(2 * number + bool(name), CHUNKS)
            self._time(f"store{name}", lambda engine=engine, keys=keys: engine.store(keys))
            time.sleep(0.1)
            grant = engine.acquire(keys)
            if any(state != KeyState.HIT for state in grant.states):
                raise SystemExit("stored chunks do not hit")
            self._time(f"load{name}", lambda engine=engine, keys=keys, grant=grant: engine.load(keys, grant))
            engine.scheduler.release(grant)

    def report(self) -> dict[str, object]:
        """Medians, and ratios of rates: 1 is the speed of one memcpy over the same bytes."""
        wall = {name: statistics.median(times) for name, times in self._wall.items()}
        cpu = {name: statistics.median(times) for name, times in self._cpu.items()}
        jobs = [name for name in cpu if name != "memcpy"]
        return {
            "rounds": len(self._wall["memcpy"]),
            "acquire_us": {name: round(1e6 * wall[name], 1) for name in wall if name.startswith("acquire")},
            "wall_ms": {name: round(1e3 * wall[name], 2) for name in (*jobs, "memcpy")},
            "cpu_ms": {name: round(1e3 * cpu[name], 2) for name in cpu},
            "ratios": {
                **{f"{name}_over_memcpy_wall": round(wall["memcpy"] / wall[name], 3) for name in jobs},
                **{f"{name}_over_memcpy_cpu": round(cpu["memcpy"] / cpu[name], 3) for name in jobs},
            },
        }

    def close(self) -> None:
        """End all sessions."""
        for engine in (self._small, self._plain, self._verified):
            engine.close()

    def _acquire(self, count: int) -> None:
        keys = self._many[:count]
        begun = time.perf_counter()
        grant = self._small.acquire(keys)
        self._small.scheduler.release(grant)
        self._wall[f"acquire_{count}"].append(time.perf_counter() - begun)
        if any(state != KeyState.HIT for state in grant.states):
            raise SystemExit("stored chunks do not hit")

    def _memcpy(self) -> None:
        self._time("memcpy", lambda: _memcpy(self._to.data_ptr(), self._from.data_ptr(), self._plain.bytes))

    def _time(self, name: str, act: object) -> None:
        assert callable(act)
        cpu, wall = time.process_time(), time.perf_counter()
        act()
        self._wall[name].append(time.perf_counter() - wall)
        self._cpu[name].append(time.process_time() - cpu)


@contextlib.contextmanager
def running_worker(folder: Path, *flags: str) -> Iterator[Path]:
    """A worker process that listens; its socket."""
    socket = folder / "worker.sock"
    command = [sys.executable, "-m", "blockyard.cli.main", "worker", "--socket", str(socket)]
    command += ["--metrics-listen", "127.0.0.1:0", "--log-level", "warning", *flags]
    worker = subprocess.Popen(command)
    try:
        wait_for(socket)
        yield socket
    finally:
        worker.terminate()
        worker.wait(10)


def time_attaching(folder: Path, pools: list[str], rounds: int) -> dict[str, object]:
    """Milliseconds from the start of both clients to both sessions standing, by size of the pool.

    The pool's pages are not touched: that is the worker's affair, in its background; an engine maps them either way.
    """
    taken: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for pool in pools:
            with running_worker(folder, "--host-pool", pool, "--no-prefault") as socket:
                engine = Engine(socket, f"engine-{number}", b"a" * 32, PAGE, "off")
                begun = time.perf_counter()
                engine.attach(pause=0.0005)
                taken[pool].append(1e3 * (time.perf_counter() - begun))
                engine.close()
    return {
        "rounds": rounds,
        "attach_ms": {pool: round(statistics.median(times), 2) for pool, times in taken.items()},
        "attach_ms_max": {pool: round(max(times), 2) for pool, times in taken.items()},
    }


def time_jobs(folder: Path, rounds: int) -> dict[str, object]:
    """The report of all rounds of acquires and jobs."""
    with running_worker(folder, "--host-pool", "1GiB") as socket:
        bench = Bench(socket)
        # The pool's pages are entered in the background; a copy into a new page would be timed otherwise.
        time.sleep(5.0)
        for number in range(rounds):
            bench.round(number)
        bench.close()
        return bench.report()


def wait_for(socket: Path) -> None:
    """Until the worker listens."""
    deadline = time.monotonic() + START_SECONDS
    while not socket.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the worker does not listen")
        time.sleep(0.05)


def main() -> None:
    """Start a worker, run the rounds, print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--attach-pools", help="sizes, separated by commas: time attaching alone")
    parser.add_argument("--json", type=Path, help="write the report here too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="by-bench-") as folder:
        if arguments.attach_pools:
            report = time_attaching(Path(folder), arguments.attach_pools.split(","), arguments.rounds)
        else:
            report = time_jobs(Path(folder), arguments.rounds)
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
