"""Many seeds, in one process or several. Owns how seeds are shared out and when to stop."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from sim.report import Totals, failure
from sim.run import run_seed
from sim.shrink import shrink


def sweep(seeds: Iterable[int], seconds: float, variant: str = "nothing", failures: int = 1) -> Totals:
    """Run seeds until there are no more, the time is up, or so many have failed. A failure is printed at once."""
    totals = Totals()
    began = time.monotonic()
    for seed in seeds:
        if time.monotonic() - began > seconds:
            break
        result = run_seed(seed, variant)
        story = "" if result.ok else "\n".join(failure(shrink(result)))
        totals.add(result, story)
        if story:
            print(story, flush=True)
        if len(totals.failures) >= failures:
            break
    totals.real_seconds = time.monotonic() - began
    return totals


def sweep_in_processes(
    start: int, count: int, seconds: float, jobs: int, variant: str = "nothing", failures: int = 1
) -> Totals:
    """The seeds from `start` on, dealt out in turn to so many processes; each stops at so many failures."""
    if jobs == 1:
        return sweep(range(start, start + count), seconds, variant, failures)
    shares = [range(start + job, start + count, jobs) for job in range(jobs)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(sweep, share, seconds, variant, failures) for share in shares]
        totals = Totals()
        for part in parts:
            totals.join(part.result())
    return totals
