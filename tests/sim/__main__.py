"""`python -m sim`: many seeds within a time, or one seed told in full. The exit code is 1 on any violation."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from sim.broken import VARIANTS
from sim.digest import code_digest, first_seed
from sim.ledger import Ledger
from sim.report import failure
from sim.run import run_seed
from sim.sweep import sweep_in_processes
from sim.trace import traced


def main() -> int:
    arguments = _arguments()
    if arguments.seed is not None:
        return _one(arguments)
    return _many(arguments)


def _many(arguments: argparse.Namespace) -> int:
    """Seeds from `--start`; without it those of this code from where the ledger stands, or fresh ones."""
    digest = code_digest()
    ledger = Ledger(arguments.ledger) if arguments.ledger else None
    if arguments.start is not None:
        start = arguments.start
    elif ledger is not None:
        start = first_seed(digest) + ledger.of(digest).next
    else:
        start = random.SystemRandom().randrange(1 << 40)
    print(f"code {digest}, seeds from {start}", flush=True)
    seconds, variant = arguments.minutes * 60, arguments.broken
    totals = sweep_in_processes(start, arguments.seeds, seconds, arguments.jobs, variant, arguments.failures)
    print("\n".join(totals.lines()))
    if ledger is not None and arguments.start is None:
        tally = ledger.add(digest, totals)
        print(
            f"code {digest} so far: {tally.seeds} seeds, {tally.violations} violations, "
            f"{tally.faults} faults injected, {tally.reads_checked} reads checked, {tally.real_seconds:.0f} s"
        )
    return 1 if totals.failures else 0


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
    parser.add_argument("--seeds", type=int, default=1 << 40, help="at most so many seeds")
    parser.add_argument("--minutes", type=float, default=2.0, help="at most so long")
    parser.add_argument("--start", type=int, help="the first seed (default: a fresh one)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--ledger", type=Path, help="add up clean seeds of the same code in this file, from run to run")
    parser.add_argument("--failures", type=int, default=1, help="stop at so many failing seeds")
    parser.add_argument("--broken", choices=sorted(VARIANTS), default="nothing", help="run a broken variant instead")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
