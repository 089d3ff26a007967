"""Thousands of random events with disks below, every invariant checked after each; then all must heal."""

from __future__ import annotations

import pytest

from blockyard.common.metrics.equalities import broken
from blockyard.common.slot_table import SlotState
from support.disk_chaos import DiskChaos


def live(seed: int, steps: int = 2000) -> DiskChaos:
    chaos = DiskChaos(seed)
    for _ in range(steps):
        chaos.step()
    return chaos


def check(chaos: DiskChaos) -> None:
    core = chaos.node.core
    core.show_gauges()
    assert broken(core.counters) == []
    chaos.heal()
    assert set(chaos.node.states()) <= {SlotState.READY}
    assert not core.grants.grants and not core.reservations.fills.jobs
    assert not core.disk.operations.all and len(core.pinning.waiting) == 0
    assert all(one.breaker.closed for one in core.disk.directories.all)
    assert len(core.holdings.spills) == 0
    for copy in core.disk.directories.copies():
        device = chaos.disks.devices[copy.segment.directory.number]
        assert copy.segment.number in device.segments


@pytest.mark.parametrize("seed", range(30))
def test_a_random_life_with_disks_keeps_the_books_and_heals(seed: int) -> None:
    check(live(seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_many_random_lives_with_disks(seed: int) -> None:
    check(live(seed, 3000))


def test_the_lives_are_not_empty() -> None:
    """Otherwise the others prove nothing."""
    names = (
        "disk_writes_completed_total",
        "disk_writes_failed_total",
        "disk_reads_completed_total",
        "disk_reads_failed_total",
        "disk_moved_bytes_total",
        "disk_evictions_total",
        "disk_segments_reclaimed_total",
        "disk_breaker_opened_total",
        "disk_spills_dropped_total",
    )
    total = dict.fromkeys(names, 0.0)
    for seed in range(30):
        counters = live(seed).node.core.counters
        for name in names:
            total[name] += counters.total(f"blockyard_worker_{name}")
    assert min(total.values()) > 5, total
