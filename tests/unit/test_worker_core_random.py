"""Thousands of random events, right and wrong ones, with every invariant checked after each; then all must heal."""

import pytest

from blockyard.common.metrics.equalities import broken
from blockyard.common.slot_table import SlotState
from blockyard.worker.core import events
from support.worker_chaos import Chaos
from support.worker_core import Node
from support.worker_core_leader import Leader

STEPS = 1000


def live(seed: int, steps: int) -> Chaos:
    chaos = Chaos(seed)
    for _ in range(steps):
        chaos.step()
    return chaos


@pytest.mark.parametrize("seed", range(40))
def test_a_random_life_keeps_the_books_and_heals(seed: int) -> None:
    check(live(seed, STEPS))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_many_random_lives(seed: int) -> None:
    check(live(seed, 2 * STEPS))


def check(chaos: Chaos) -> None:
    node = chaos.node
    node.core.show_gauges()
    assert broken(node.core.counters) == []
    chaos.heal()
    assert set(node.states()) <= {SlotState.READY}
    assert not node.core.grants.grants
    assert not node.core.book.sessions and not node.core.book.engines and not node.core.book.waiting
    assert not node.core.reservations.fills.jobs and not node.core.reservations.fills.parked
    assert node.core.next_deadline() is None
    node.core.show_gauges()
    assert broken(node.core.counters) == []
    converges(node)


def converges(node: Node) -> None:
    """A leader that comes now learns what is held, whatever was said before."""
    node.do(events.Incarnated(10**9))
    leader = Leader(node)
    leader.link()
    for _ in range(20):
        leader.tick()
    assert leader.held == {key for key, *_ in node.core.holdings.shared()}
    leader.ack()
    assert node.core.outbox.settled


def test_the_lives_are_not_empty() -> None:
    """Otherwise the others prove nothing."""
    total = dict.fromkeys(("committed", "duplicate", "loaded", "failed", "evicted", "dropped", "quarantined"), 0.0)
    for seed in range(40):
        counters = live(seed, STEPS).node.core.counters
        total["committed"] += counters.total("blockyard_worker_fills_committed_total")
        total["duplicate"] += counters.total("blockyard_worker_fills_duplicate_total")
        total["loaded"] += counters.total("blockyard_worker_loads_completed_total")
        total["failed"] += counters.total("blockyard_worker_loads_failed_total")
        total["evicted"] += counters.total("blockyard_worker_evictions_total")
        total["dropped"] += counters.total("blockyard_worker_fills_dropped_total")
        total["quarantined"] += counters.total("blockyard_worker_quarantined_total")
    assert min(total.values()) > 30, total
