"""Seeds of whole clusters under faults: a fixed corpus, fresh ones each time, and runs that are the same twice."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from sim.digest import code_digest, first_seed
from sim.report import failure
from sim.run import Result, run_seed
from sim.shrink import shrink
from sim.sweep import sweep

# Seeds that once failed, by what they found; the rest of the corpus is what it is.
FOUND = {
    5: "a leader's list of workers outlived the etcd data that it was read from",
    19: "a leader led an etcd that was wiped with a key of the one before",
    24: "a snapshot that was lost with its link took with it what the full outbox had dropped",
    69: "a standby that had never led did not see that etcd was wiped",
    117: "a worker looked for ever for the leader of an etcd that was wiped",
    563: "a leader's watch missed a registration in an etcd restored from a backup",
    5449: "a worker that doubted its leader no longer noticed that etcd went back",
    269858378229: "a rank that is taken for dead may be frozen for longer than that",
    269858378995: "two workers had the same incarnation, each of another history of etcd",
    1042903289438: "a worker counted one wipe of etcd twice",
    167: "a worker asked for ever a leader that stood by",
}
CORPUS = sorted({*range(54), *FOUND})
FRESH_SEEDS = 600
FRESH_SECONDS = 120.0


def holds(result: Result) -> None:
    assert result.ok, "\n".join(failure(shrink(result)))


@cache
def met(seed: int) -> tuple[Counter[str], Counter[str]]:
    """What a seed of the corpus, in which everything held, did, and which faults it met."""
    result = run_seed(seed)
    holds(result)
    return result.numbers, Counter(result.world.injected)


@pytest.mark.parametrize("seed", CORPUS)
def test_corpus(seed: int) -> None:
    numbers, _ = met(seed)
    assert numbers["requests ended"] > 0


@pytest.mark.timeout(400)
def test_fresh_seeds() -> None:
    """Fresh for each change of the code, and the same seeds wherever this code runs."""
    run_fresh(FRESH_SEEDS, FRESH_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_fresh_seeds() -> None:
    run_fresh(2500, 600.0)


def run_fresh(seeds: int, seconds: float) -> None:
    start = first_seed(code_digest())
    totals = sweep(range(start, start + seeds), seconds)
    assert totals.seeds > 0
    assert not totals.failures, "\n".join(totals.failures)


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = run_seed(3), run_seed(3)
    assert first.numbers == second.numbers
    assert (first.world.clock.now, first.world.clock.events) == (second.world.clock.now, second.world.clock.events)


@pytest.mark.timeout(400)
def test_the_corpus_is_not_empty_of_what_matters() -> None:
    """Otherwise the others prove nothing."""
    numbers: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in CORPUS:
        did, injected = met(seed)
        numbers += did
        kinds += injected
    wanted = (
        "loads ok",
        "loads stale",
        "stores ok",
        "stores duplicate",
        "stores no-room",
        "hits granted",
        "hints sent",
        "fetches ok",
    )
    assert min(numbers[name] for name in wanted) > 40, numbers
    assert len(kinds) > 24, kinds
