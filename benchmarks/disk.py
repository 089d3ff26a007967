"""Question: how much of what a device can do is left when the disk tier works on it, and what does a start cost?

Spill and load: the worker's own disk side (threads, segment store, verification, event loop) against fio and against
bare threads, each writing and reading the same number of blocks of the same size with as many threads; and loads
against bare reads of the same files into the same memory. Subjects take turns within each round, in an order drawn at
random; ratios are medians over rounds. Start: directories of sealed segments with
this many records, opened by the store alone and by a whole worker.

    python benchmarks/disk.py [--rounds 30] [--segments 256 128] [--records 100000 1000000] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import uvloop

from blockyard.worker.disk.probe import probe
from disks.records import starts
from disks.tier import Tier
from disks.workload import READERS, WRITERS, Pass, Subject, Workload
from disks.yardsticks import Files, Fio, Threads

MIB = 1 << 20
TIER = "tier"
Times = dict[str, dict[str, list[Pass]]]


async def rounds(work: Workload, segments: list[int], count: int) -> Times:
    """Every subject writes, reads and clears once in each round; what the first round shows is left out."""
    times: Times = defaultdict(lambda: defaultdict(list))
    async with contextlib.AsyncExitStack() as running:
        subjects: dict[str, Subject] = {"threads": Threads(work)}
        files: dict[str, Files] = {}
        if shutil.which("fio"):
            subjects["fio"] = Fio(work)
        for size in segments:
            place = work.folder / f"segments-{size}"
            place.mkdir()
            tier = await running.enter_async_context(Tier.running(dataclasses.replace(work, folder=place), size * MIB))
            subjects[f"{TIER} {size}MiB"], files[f"{TIER} {size}MiB"] = tier, Files(tier, work)
        order = random.Random(0)
        for number in range(count + 1):
            # Each in its own order: what one gives back the device may still discard while the next one runs.
            for name in order.sample(list(subjects), len(subjects)):
                written, read = await subjects[name].write(), await subjects[name].read()
                bare = files[name].read() if name in files else None
                await subjects[name].clear()
                if number:
                    times[name]["spill"].append(written)
                    times[name]["load"].append(read)
                    if bare is not None:
                        times[f"files of {name}"]["load"].append(bare)
    return times


def summary(work: Workload, times: Times) -> dict[str, object]:
    """Medians of GB/s and of CPU-seconds for each GB; a tier's rate over each yardstick's of the same round."""
    size = work.total_bytes / 1e9
    rates, ratios = {}, {}
    for name, kinds in times.items():
        for kind, passes in kinds.items():
            rates[f"{name} {kind}"] = {
                "gb_per_s": round(statistics.median(size / one.wall for one in passes), 3),
                "least": round(min(size / one.wall for one in passes), 3),
                "most": round(max(size / one.wall for one in passes), 3),
                "cpu_s_per_gb": round(statistics.median(one.cpu / size for one in passes), 3),
            }
    for tier, other in itertools.product(times, times):
        if tier.startswith(TIER) and not other.startswith(TIER) and (not other.startswith("files") or tier in other):
            for kind in times[other]:
                pairs = list(zip(times[other][kind], times[tier][kind], strict=True))
                ratios[f"{tier} {kind} / {other}"] = round(statistics.median(a.wall / b.wall for a, b in pairs), 2)
    return {"rates": rates, "ratios": ratios}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--chunk-bytes", type=int, default=2 * MIB)
    parser.add_argument("--segments", type=int, nargs="+", default=[256, 128], help="sizes of disk_segment, in MiB")
    parser.add_argument("--records", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, help="on the file system to measure; else where temporary files lie")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    options = parser.parse_args()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="by-disk-", dir=options.folder) as name:
        folder = Path(name)
        shared = folder / "shared"
        shared.mkdir()
        direct = probe(shared).direct
        work = Workload(shared, options.chunks, options.chunk_bytes, direct)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured = summary(work, runner.run(rounds(work, options.segments, options.rounds)))
        shutil.rmtree(shared)
        measured["starts"] = [starts(folder, count) for count in options.records]
    result = {
        "rounds": options.rounds,
        "block_bytes": work.extent_bytes,
        "blocks": work.chunks,
        "direct": direct,
        "threads": {"spill": WRITERS, "load": READERS},
        "load_average": {"before": load_before, "after": os.getloadavg()},
        **measured,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
