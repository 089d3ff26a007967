"""The disk tier of the worker core: what is written when, what comes back, and what a device's trouble does."""

from __future__ import annotations

import pytest

from blockyard.common.messages import attach, cluster
from blockyard.common.slot_table import SlotState
from blockyard.worker.core import events, instructions
from blockyard.worker.core.disk import wire
from support.disk_device import DiskNode
from support.disk_engine import HIT, LATE, SHAPE, asks, pushed_out, silent, states
from support.worker_core import keys, run
from support.worker_core_leader import Leader


def test_a_chunk_is_written_once_its_checksum_stands() -> None:
    node = DiskNode()
    engine = node.engine()
    engine.store(keys(1))
    node.wait(0.1)
    assert not node.pending
    node.check()
    node.wait(0.1)
    (write,) = node.under_way(wire.WriteExtent)
    assert (write.key, write.shape) == (keys(1)[0], SHAPE)
    assert write.slot == node.slot_of(keys(1)[0])


def test_a_slot_is_not_reused_while_it_is_written() -> None:
    node = DiskNode(per_segment=8, disk={"writing_share": 1.0})
    engine = node.engine()
    engine.store(keys(1, 2, 3, 4))
    node.check()
    node.wait(0.1)
    engine.fill(keys(5))
    assert node.count("fills_refused_total", reason="no-room") == 1
    node.settle()
    engine.fill(keys(6))
    assert node.states() == {SlotState.READY: 3, SlotState.FILLING: 1}


def test_the_leader_is_told_of_each_tier() -> None:
    node = DiskNode()
    engine = node.engine()
    node.do(events.Incarnated(1))
    leader = Leader(node)
    engine.store(keys(1))
    node.check()
    leader.link()
    leader.tick()
    assert leader.tiers == {keys(1)[0]: cluster.TIER_HOST}
    leader.take(node.end(node.under_way(wire.WriteExtent)[0].op))
    leader.tick()
    assert leader.tiers == {keys(1)[0]: cluster.TIER_HOST | cluster.TIER_DISK}
    engine.store(keys(2, 3, 4, 5))
    leader.tick()
    assert leader.tiers[keys(1)[0]] == cluster.TIER_DISK


def test_what_left_the_host_is_read_back() -> None:
    node, engine = pushed_out()
    assert engine.sees(keys(1)) == [LATE]
    out = asks(engine, keys(1, 2))
    assert silent(out)
    first, second = node.under_way(wire.ReadExtent)
    assert node.end(first.op) and silent(node.wait(0.01))
    assert states(node.end(second.op)) == [HIT, HIT]
    assert node.count("hit_chunks_total", tier="disk") == 2
    assert engine.sees(keys(1, 2)) == [HIT, HIT]
    assert node.count("hit_chunks_total", tier="host") == 2


def test_a_prefix_run_is_read_only_as_far_as_it_goes() -> None:
    node, engine = pushed_out()
    asks(engine, keys(1, 99, 2))
    assert [one.extent.key for one in node.under_way(wire.ReadExtent)] == keys(1)


def test_a_run_that_is_no_prefix_is_read_wherever_it_can_be() -> None:
    node, engine = pushed_out()
    engine.says(attach.Acquire(1, "request", [run(keys(1, 99, 2), prefix=False)], 500))
    assert [one.extent.key for one in node.under_way(wire.ReadExtent)] == keys(1, 2)


def test_one_read_serves_all_who_wait() -> None:
    node, engine = pushed_out()
    other = node.engine("b")
    asks(engine, keys(1))
    asks(other, keys(1))
    (read,) = node.under_way(wire.ReadExtent)
    granted = [one.session for one in node.end(read.op) if isinstance(one, instructions.Send)]
    assert granted == [engine.scheduler, other.scheduler]


def test_nobody_waits_longer_than_asked() -> None:
    node, engine = pushed_out()
    asks(engine, keys(1, 2), wait_ms=200)
    node.end(node.under_way(wire.ReadExtent)[0].op)
    assert silent(node.wait(0.1))
    assert states(node.wait(0.11)) == [HIT, LATE]
    node.settle(wire.ReadExtent)
    assert engine.sees(keys(1, 2)) == [HIT, HIT]


def test_who_does_not_wait_starts_no_read() -> None:
    node, engine = pushed_out()
    assert states(asks(engine, keys(1), wait_ms=0)) == [LATE]
    assert not node.pending


def test_what_is_there_stays_pinned_for_who_waits() -> None:
    node, engine = pushed_out()
    asks(engine, keys(1))
    node.settle(wire.ReadExtent)
    asks(engine, keys(1, 2), seq=2)
    engine.store(keys(201, 202, 203, 204))
    assert node.slot_of(keys(1)[0]) >= 0
    (read,) = node.under_way(wire.ReadExtent)
    assert states(node.end(read.op)) == [HIT, HIT]


def test_reads_never_take_a_pinned_slot() -> None:
    node, engine = pushed_out()
    engine.acquire(keys(101, 102, 103, 104), "other")
    assert states(asks(engine, keys(1))) == [LATE]
    assert not node.under_way(wire.ReadExtent)


def test_reads_take_a_share_of_the_pool() -> None:
    node, engine = pushed_out(slots=8, disk={"promoting_share": 0.25})
    asks(engine, keys(1, 2, 3, 4))
    assert len(node.under_way(wire.ReadExtent)) == 2
    node.settle(wire.ReadExtent)
    assert engine.sees(keys(1, 2, 3, 4)) == [HIT] * 4


def test_a_finished_request_is_answered_and_holds_nothing() -> None:
    node, engine = pushed_out()
    asks(engine, keys(1, 2))
    node.end(node.under_way(wire.ReadExtent)[0].op)
    assert states(engine.says(attach.Finish("request"))) == [LATE, LATE]
    node.settle()
    assert engine.pins() == 0


@pytest.mark.parametrize("news", [events.ProcessGone, events.SessionClosed])
def test_a_scheduler_that_left_waits_for_nothing(news: type) -> None:
    node, engine = pushed_out()
    asks(engine, keys(1))
    node.do(news(engine.scheduler))
    assert len(node.core.pinning.waiting) == 0
    node.settle()


def test_what_is_evicted_before_its_turn_is_counted() -> None:
    node = DiskNode(disk={"max_writes": 1})
    engine = node.engine()
    engine.store(keys(1, 2, 3, 4))
    node.check()
    node.wait(0.1)
    engine.store(keys(5))
    assert node.count("disk_spills_dropped_total") == 1


def test_the_coldest_is_written_first() -> None:
    node = DiskNode(disk={"max_writes": 1})
    engine = node.engine()
    engine.store(keys(1, 2, 3))
    node.check()
    first = node.under_way(wire.WriteExtent)[0].key
    assert first == keys(3)[0]
    engine.sees(keys(1, 2))
    engine.sees(keys(1))
    node.settle()
    written = [copy.key for copy in node.core.disk.directories.copies()]
    assert written == keys(3, 2, 1)
