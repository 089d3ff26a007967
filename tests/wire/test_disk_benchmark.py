"""The benchmark of the disk tier runs, and tells what it is said to tell; what it measures is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "disk.py"


@pytest.mark.long
def test_a_short_run_tells_rates_ratios_and_starts(tmp_path: Path) -> None:
    size = ["--rounds", "1", "--chunks", "8", "--segments", "128", "--records", "500"]
    command = [sys.executable, str(SCRIPT), *size, "--folder", str(tmp_path), "--json", str(tmp_path / "out.json")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert {"tier 128MiB spill", "tier 128MiB load", "threads spill", "threads load"} <= told["rates"].keys()
    assert {"tier 128MiB spill / threads", "tier 128MiB load / threads"} <= told["ratios"].keys()
    (start,) = told["starts"]
    assert start["records"] == 500 and start["store"]["segments"] == 4 and start["worker"]["segments"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
