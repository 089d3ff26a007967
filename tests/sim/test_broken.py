"""Broken variants of the production code: each is noticed within 200 seeds, by the check that is meant to."""

from __future__ import annotations

import pytest

from sim.run import Result, run_seed
from sim.shrink import shrink

SEEDS = 200

EXPECTED = {
    "visible-too-early": "commit-before-visible",
    "generations-ignored": "verified-bytes",
    "freed-at-scheduler-death": "no-reuse-while-pinned",
    "no-fences": "incarnation-scoped-claims",
    "changes-lost": "index-converges",
    "digests-ignored": "live-after-heal",
    "peers-trusted": "commit-before-visible",
    "hints-kept": "hints-as-told",
}


def first_failure(variant: str) -> Result:
    for seed in range(SEEDS):
        result = run_seed(seed, variant)
        if not result.ok:
            return result
    pytest.fail(f"{variant} was not noticed in {SEEDS} seeds")


@pytest.mark.parametrize(("variant", "invariant"), EXPECTED.items())
def test_a_broken_variant_is_noticed(variant: str, invariant: str) -> None:
    result = first_failure(variant)
    assert result.name == invariant
    assert run_seed(result.seed).ok


def test_a_failing_run_shrinks_to_the_faults_that_it_takes() -> None:
    failed = first_failure("freed-at-scheduler-death")
    small = shrink(failed)
    assert small.name == failed.name
    assert len(small.faults) < len(failed.faults) / 2
    assert any("kill" in fault.kind for fault in small.faults)
