"""`python -m sim`: many seeds within a time, or one seed told in full. The exit code is 1 on any violation."""

from __future__ import annotations

import argparse
import random
import sys
import time

from sim.broken import VARIANTS
from sim.report import Totals, failure
from sim.run import run_seed
from sim.shrink import shrink
from sim.trace import traced


def main() -> int:
    arguments = _arguments()
    if arguments.seed is not None:
        return _one(arguments)
    start = random.SystemRandom().randrange(1 << 40) if arguments.start is None else arguments.start
    print(f"seeds from {start}")
    totals = sweep(start, arguments.seeds, arguments.minutes * 60, arguments.broken, arguments.failures)
    return 1 if totals.failed else 0


def sweep(start: int, seeds: int, seconds: float, variant: str = "nothing", failures: int = 1) -> Totals:
    """Run seeds until there are enough of them, the time is up, or so many have failed; print what came of it."""
    totals = Totals()
    began = time.monotonic()
    for seed in range(start, start + seeds):
        if time.monotonic() - began > seconds:
            break
        result = run_seed(seed, variant)
        totals.add(result)
        if not result.ok:
            print("\n".join(failure(shrink(result))))
            if len(totals.failed) >= failures:
                break
    print("\n".join(totals.lines(time.monotonic() - began)))
    return totals


def _one(arguments: argparse.Namespace) -> int:
    """One seed, all of its faults or those named."""
    keep = None
    if arguments.faults is not None:
        keep = [int(number) for number in arguments.faults.split(",") if number]
    if arguments.trace:
        with traced() as lines:
            result = run_seed(arguments.seed, arguments.broken, keep)
        print("\n".join(lines))
    else:
        result = run_seed(arguments.seed, arguments.broken, keep)
    print("\n".join(failure(result)) if not result.ok else f"seed {result.seed} holds")
    return 0 if result.ok else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sim", description="Runs the production cores under faults, in virtual time.")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--faults", help="with --seed: only the faults of these numbers, as 1,4,7 (default: all)")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell every event")
    parser.add_argument("--seeds", type=int, default=1 << 62, help="at most so many seeds")
    parser.add_argument("--minutes", type=float, default=2.0, help="at most so long")
    parser.add_argument("--start", type=int, help="the first seed (default: a fresh one)")
    parser.add_argument("--failures", type=int, default=1, help="stop at so many failing seeds")
    parser.add_argument("--broken", choices=sorted(VARIANTS), default="nothing", help="run a broken variant instead")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
