"""Death between any two messages of a store and a load: every point once, and where the corpus's deaths land."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.faults import draw_faults
from sim.kill_points import Point, noted_deaths, run_point
from sim.run import run_seed
from sim.streams import Streams
from sim.violation import Violation
from sim.world import CHAOS

# A seed with one rank and one with two, whose first requests store, load and release.
SEEDS = {3: 1, 11: 2}
REQUESTS = 4
STORE_AND_LOAD = {
    "Hello",
    "Welcome",
    "Acquire",
    "Grant",
    "Fill",
    "Resolve",
    "Resolved",
    "StoreDone",
    "LoadDone",
    "Release",
    "Finish",
}


def points(seed: int, ranks: int, requests: int = REQUESTS) -> list[Point]:
    """Every point of the undisturbed run."""
    messages = run_point(seed, None, requests).messages
    victims = ["scheduler", "worker", *(f"rank{rank}" for rank in range(ranks))]
    return [
        Point(number, victim, after)
        for number in range(1, len(messages) + 1)
        for victim in victims
        for after in (False, True)
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "ranks"), SEEDS.items())
def test_every_point_of_a_store_and_a_load(seed: int, ranks: int) -> None:
    reached: Counter[tuple[str, bool, str]] = Counter()
    barren = 0
    for point in points(seed, ranks):
        try:
            world = run_point(seed, point, REQUESTS)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {point}: {violation}")
        barren += not world.numbers["loads ok"]
        reached[point.victim, point.after, world.died_at] += 1
    for victim in {"scheduler", "worker", "rank0", f"rank{ranks - 1}"}:
        for after in (False, True):
            assert {kind for who, when, kind in reached if (who, when) == (victim, after)} >= STORE_AND_LOAD
    assert barren < sum(reached.values()) / 10, "after most deaths there was something to load wrong"


def test_a_broken_variant_is_noticed_at_one_of_the_points() -> None:
    """The control: an engine's copies are taken for ended when its scheduler dies."""
    schedulers = [point for point in points(11, 2) if point.victim == "scheduler"]
    with pytest.raises(Violation):
        for point in schedulers:
            run_point(11, point, REQUESTS, "freed-at-scheduler-death")


@pytest.mark.timeout(600)
def test_deaths_of_random_runs_land_at_every_kind_of_point() -> None:
    """By role, and the last message that the dying process took or sent. A worker answers in the step in which it is
    asked, so only the points above come between its question and its answer.
    """
    expected = {
        "scheduler": {"Hello", "Welcome", "Acquire", "Grant", "Fill", "Release", "Finish"},
        "rank": {"Hello", "Welcome", "Resolve", "Resolved", "StoreDone", "LoadDone"},
        "worker": {"Grant", "Resolved", "StoreDone", "LoadDone"},
    }
    missing = {(role, kind) for role, kinds in expected.items() for kind in kinds}
    deaths: Counter[tuple[str, str]] = Counter()
    with noted_deaths(deaths):
        for seed in range(400):
            if any("kill" in fault.kind for fault in draw_faults(Streams(seed), CHAOS)):
                run_seed(seed)
                missing -= deaths.keys()
            if not missing:
                break
    assert not missing, f"{missing} of {deaths}"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_point_of_many_seeds() -> None:
    for seed in range(12):
        ranks = len(run_point(seed, None, 2 * REQUESTS).engines[0].ranks)
        for point in points(seed, ranks, 2 * REQUESTS):
            assert run_point(seed, point, 2 * REQUESTS).numbers["requests ended"] > 0, point
