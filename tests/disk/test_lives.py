"""Many lives of a store that ends badly each time: on the model disk, operation by operation, and on real files."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.worker.disk.io import DiskDirectory
from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory
from sim.files import ModelDirectory
from support.disk_bench import SHAPES, Bench, allocated, open_store, outcome, put
from support.disk_faults import READS, WRITES, Fault, FaultyDirectory, Kind, ProcessKilled
from support.power_cut import PowerCutDirectory

CAPACITY = 4 << 20


def failing_at(directory: DiskDirectory, seed: int, step: int, kind: Kind, count: int) -> bool:
    """Work in which one operation fails, then a start. Whether any did."""
    bench = Bench(random.Random(seed))
    faulty = FaultyDirectory(directory)
    fault = faulty.inject(Fault(kind, at=step, where=random.Random(step).random()))
    try:
        bench.start(faulty)
        bench.steps(count)
    except OSError:
        assert bench.lives == 1 and not bench.acknowledged, "only the start itself may fail"
    except ProcessKilled:
        assert kind is Kind.KILLED
    bench.start(directory)
    bench.steps(5)
    bench.check_books(directory)
    return fault.met >= step


def steps_until_clean(make: Callable[[int], DiskDirectory], kind: Kind, count: int) -> int:
    """Fail the first operation, the second, … until none fails."""
    step = 1
    while failing_at(make(step), 5, step, kind, count):
        step += 1
    return step


@pytest.mark.parametrize("kind", [Kind.EIO, Kind.ENOSPC, Kind.SHORT, Kind.KILLED])
def test_each_operation_in_turn_fails_on_the_model(kind: Kind) -> None:
    assert steps_until_clean(lambda step: ModelDirectory(CAPACITY), kind, 40) > 50


@pytest.mark.parametrize("kind", [Kind.EIO, Kind.KILLED])
def test_each_operation_in_turn_fails_on_real_files(tmp_path: Path, kind: Kind) -> None:
    direct = probe(tmp_path).direct

    def make(step: int) -> DiskDirectory:
        place = tmp_path / str(step)
        place.mkdir()
        return RealDirectory(place, direct=direct)

    assert steps_until_clean(make, kind, 12) > 20


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_lives_on_the_model(seed: int) -> None:
    run_lives(ModelDirectory(CAPACITY), seed, 12)


@pytest.mark.parametrize("seed", range(2))
def test_random_lives_on_real_files(real: RealDirectory, seed: int) -> None:
    run_lives(real, seed, 6)


def run_lives(directory: DiskDirectory, seed: int, count: int) -> None:
    """Random work, ended by a kill at a random operation, a loss of power, or in order; again and again."""
    draw = random.Random(seed)
    bench = Bench(draw)
    cut = False
    power = PowerCutDirectory(directory)
    for _ in range(count):
        faulty = FaultyDirectory(power)
        bench.start(faulty, after_power_cut=cut)
        end = draw.choice(["kill", "power", "close"])
        if end == "kill":
            faulty.inject(Fault(Kind.KILLED, at=draw.randint(1, 120), where=draw.random()))
        with contextlib.suppress(ProcessKilled):
            bench.steps(draw.randint(5, 60))
            if end == "close":
                bench.store.close()
                bench.durable = dict(bench.acknowledged)
        cut = end == "power"
        if cut:
            chance = draw.random()
            power.cut(lambda chance=chance: draw.random() < chance)  # type: ignore[misc]
            power = PowerCutDirectory(directory)
    assert bench.reads


@pytest.mark.parametrize("kind", [Kind.TORN, Kind.MISDIRECTED, Kind.FLIPPED])
def test_an_operation_that_goes_wrong_silently_never_brings_wrong_bytes(kind: Kind) -> None:
    step, missed = 1, 0
    while True:
        directory = ModelDirectory(CAPACITY)
        faulty = FaultyDirectory(directory)
        fault = faulty.inject(Fault(kind, on=READS | WRITES, at=step, where=random.Random(step).random()))
        store, _ = open_store(faulty)
        extents = [put(store, number, SHAPES[number % 3]) for number in range(12)]
        results = [outcome(store, extent) for extent in extents]
        for _ in range(2):
            # As after a kill; the fault may hit the start.
            store, started = open_store(faulty, seed=1)
            found = {*started.extents, *(extent for number in started.to_scan for extent in store.scan(number))}
            assert found <= set(extents)
            results += [outcome(store, extent) for extent in found]
            assert store.used_bytes == allocated(directory)
        missed += len(results) - results.count("right")
        if fault.met < step:
            break
        step += 1
    assert step > 50
    assert missed > 0
