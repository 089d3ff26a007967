"""A real process is killed again and again while it writes: what it acknowledged is there, and the books balance."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.worker.disk.format.values import NO_SALT, Extent
from blockyard.worker.disk.probe import PROBE_NAME
from blockyard.worker.disk.real import RealDirectory
from support.disk_bench import SHAPES, SMALL, allocated, open_store, outcome
from support.disk_samples import digest

TESTS = Path(__file__).parents[1]


class Victim:
    """The acknowledged extents of all lives so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self.extents: dict[int, Extent] = {}

    def live(self, seed: int, lines: int) -> None:
        """One life that is killed after so many lines, or in the middle of what follows."""
        command = [sys.executable, "-m", "support.disk_child", str(self.folder), str(self.number), str(seed)]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            assert child.stdout is not None
            try:
                for _ in range(lines):
                    self._heard(child.stdout.readline())
            finally:
                child.kill()
            for line in child.stdout:
                self._heard(line)

    def _heard(self, line: str) -> None:
        what, *numbers = line.split()
        if what == "reclaim":
            gone = int(numbers[0])
            self.extents = {number: extent for number, extent in self.extents.items() if extent.segment != gone}
            return
        number, segment, offset, seq = map(int, numbers)
        shape = SHAPES[number % len(SHAPES)]
        self.extents[number] = Extent(digest("key", number), NO_SALT, shape, segment, offset, seq)
        self.number = number + 1


def kill_again_and_again(real: RealDirectory, lives: int) -> None:
    draw = random.Random(lives)
    victim = Victim(real.path)
    for life in range(lives):
        victim.live(life, draw.randint(1, 80))
        (real.path / PROBE_NAME).unlink(missing_ok=True)
        store, started = open_store(real, seed=1000 + life)
        found = set(started.extents).union(*(store.scan(number) for number in started.to_scan))
        assert set(victim.extents.values()) <= found
        assert {outcome(store, extent) for extent in found} <= {"right"}
        assert store.used_bytes == allocated(real) <= SMALL.cap_bytes
        store.close()
    assert victim.number > 5 * lives


def test_15_kills(real: RealDirectory) -> None:
    kill_again_and_again(real, 15)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_300_kills(real: RealDirectory) -> None:
    kill_again_and_again(real, 300)
