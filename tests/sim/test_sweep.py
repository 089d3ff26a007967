"""Adding up seeds over processes and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.digest import code_digest, first_seed, sources
from sim.ledger import Ledger
from sim.sweep import sweep, sweep_in_processes


def test_processes_find_what_one_finds() -> None:
    alone = sweep(range(40, 46), 60.0)
    shared = sweep_in_processes(40, 6, 60.0, jobs=2)
    assert (shared.seeds, shared.last, shared.numbers, shared.injected, shared.events) == (
        6,
        45,
        alone.numbers,
        alone.injected,
        alone.events,
    )


def test_failures_are_told_and_end_the_sweep() -> None:
    totals = sweep(range(200), 60.0, "visible-too-early", failures=1)
    assert len(totals.failures) == 1
    assert f"again: PYTHONPATH=tests python -m sim --seed {totals.last} --faults" in totals.failures[0]


def test_a_ledger_goes_on_where_it_stood(tmp_path: Path) -> None:
    path, digest = tmp_path / "ledger.json", code_digest()
    start = first_seed(digest)
    Ledger(path).add(digest, sweep(range(start, start + 2), 60.0))
    tally = Ledger(path).add(digest, sweep(range(start + 2, start + 3), 60.0))
    assert (tally.seeds, tally.next, tally.violations) == (3, 3, 0)
    assert tally.reads_checked > 0
    assert Ledger(path).of("another code").seeds == 0


def test_a_broken_ledger_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text("{]")
    with pytest.raises(SystemExit, match=r"ledger\.json is not a ledger of seeds .*; right: remove it"):
        Ledger(path)
    assert path.read_text() == "{]"


def test_the_digest_covers_all_that_a_run_loads() -> None:
    loaded = "import sys, sim.run; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('blockyard.')))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    told = subprocess.run(
        [sys.executable, "-c", loaded], check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    files = {Path(path) for path in told.stdout.split() if path != "None"}
    passed_over = {path for path in files if {"metrics", "wire", "config"} & {*path.parts} or path.name == "errors.py"}
    assert len(files) > 40
    assert files - passed_over <= set(sources().values())
