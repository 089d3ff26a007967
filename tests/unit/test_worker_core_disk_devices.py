"""The disk tier of the worker core: what a device's trouble, its room, its pace and an earlier life mean."""

from __future__ import annotations

import pytest

from blockyard.common.messages import attach, cluster
from blockyard.common.messages.states import KeyState
from blockyard.common.slot_table import PAGE, SlotState
from blockyard.worker.core import events
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.settings import DirectorySettings
from blockyard.worker.disk.format.values import NO_SALT, Extent
from support.disk_device import EXTENT, DiskNode
from support.disk_engine import GONE, HIT, LATE, OFF, SHAPE, asks, pushed_out, spilt, states
from support.worker_core import keys
from support.worker_core_leader import Leader


def test_writes_hold_a_share_of_the_pool_at_most() -> None:
    node = DiskNode(slots=8)
    engine = node.engine()
    engine.store(keys(*range(1, 9)))
    node.check()
    node.wait(0.1)
    assert len(node.pending) == 2
    engine.fill(keys(*range(11, 17)))
    assert node.count("fills_refused_total", reason="no-room") == 0


@pytest.mark.parametrize("reason", ["corrupt", "gone"])
def test_a_bad_copy_is_dropped_for_good(reason: wire.Failure) -> None:
    node, engine = pushed_out()
    asks(engine, keys(1))
    (read,) = node.under_way(wire.ReadExtent)
    assert states(node.fail(read.op, reason)) == [KeyState.CORRUPT]
    assert node.dropped == [read.extent]
    assert node.count("disk_reads_failed_total", reason=reason) == 1
    assert node.states() == {SlotState.READY: 3}


def test_a_failed_read_leaves_the_copy() -> None:
    node, engine = pushed_out()
    asks(engine, keys(1))
    assert states(node.fail(node.under_way(wire.ReadExtent)[0].op, "io")) == [LATE]
    asks(engine, keys(1), seq=2)
    assert states(node.end(node.under_way(wire.ReadExtent)[0].op)) == [HIT]


def test_a_copy_that_cannot_be_read_twice_is_given_up() -> None:
    node, engine = pushed_out()
    for seq in (1, 2):
        asks(engine, keys(1), seq=seq)
        (read,) = node.under_way(wire.ReadExtent)
        out = node.fail(read.op, "io")
    assert states(out) == [GONE]
    assert node.dropped == [read.extent]


def test_a_failed_write_is_tried_again() -> None:
    node = DiskNode()
    engine = node.engine()
    engine.store(keys(1))
    node.check()
    node.wait(0.1)
    node.fail(node.under_way(wire.WriteExtent)[0].op, "io")
    assert not node.pending
    node.wait(0.1)
    assert [one.key for one in node.under_way(wire.WriteExtent)] == keys(1)


def test_a_device_that_fails_again_and_again_is_left_alone_and_comes_back() -> None:
    node, engine = pushed_out()
    for seq in (1, 2, 3):
        asks(engine, keys(seq), seq=seq)
        node.fail(node.under_way(wire.ReadExtent)[0].op, "io")
    assert states(asks(engine, keys(1), seq=4)) == [OFF]
    assert not node.pending
    node.wait(1.0)
    node.fail(node.under_way(wire.ProbeDirectory)[0].op, "io")
    node.wait(1.0)
    assert not node.pending
    node.wait(1.0)
    node.end(node.under_way(wire.ProbeDirectory)[0].op)
    asks(engine, keys(1), seq=5)
    assert states(node.end(node.under_way(wire.ReadExtent)[0].op)) == [HIT]


def test_a_read_that_hangs_keeps_its_slot_and_nobody_waits() -> None:
    node, engine = pushed_out()
    asks(engine, keys(1), wait_ms=10_000)
    (read,) = node.under_way(wire.ReadExtent)
    assert states(node.wait(5.0)) == [OFF]
    assert node.count("disk_breaker_opened_total", reason="hung") == 1
    assert node.states() == {SlotState.READY: 3, SlotState.DOOMED: 1}
    engine.store(keys(301, 302, 303, 304))
    assert node.states()[SlotState.DOOMED] == 1
    node.end(read.op)
    assert SlotState.DOOMED not in node.states()


def test_a_write_that_hangs_costs_its_slot_alone() -> None:
    node = DiskNode(disk={"max_writes": 1})
    engine = node.engine()
    engine.store(keys(1, 2))
    node.check()
    node.wait(0.1)
    node.wait(5.0)
    (write,) = node.under_way(wire.WriteExtent)
    assert engine.sees(keys(1, 2)) == [HIT, HIT]
    assert len(engine.store(keys(11, 12, 13))) == 3
    assert node.slot_of(write.key) == write.slot
    node.end(write.op)
    assert node.core.disk.directories.all[0].breaker.state == "open"


def test_writes_keep_to_their_bounds() -> None:
    node = DiskNode(slots=8, disk={"max_writing": 2 * PAGE})
    engine = node.engine()
    engine.store(keys(*range(1, 9)))
    node.check()
    node.wait(0.1)
    assert len(node.under_way(wire.WriteExtent)) == 2


def test_writes_keep_to_their_rate() -> None:
    node = DiskNode(slots=8, disk={"write_rate": float(PAGE)})
    engine = node.engine()
    engine.store(keys(*range(1, 9)))
    node.check()
    node.wait(0.1)
    node.settle()
    at_first = node.count("disk_writes_completed_total")
    assert at_first <= 2
    node.wait(1.0)
    node.settle()
    node.wait(1.0)
    node.settle()
    assert node.count("disk_writes_completed_total") == at_first + 2


def test_second_touch_admits_what_was_used_again() -> None:
    node = DiskNode(disk={"admission": "second-touch"})
    engine = node.engine()
    engine.store(keys(1, 2))
    node.check()
    engine.sees(keys(1))
    node.wait(0.1)
    assert [one.key for one in node.under_way(wire.WriteExtent)] == keys(1)
    node.settle()
    engine.store(keys(11, 12, 13, 14))
    assert engine.sees(keys(2)) == [KeyState.NOT_ADMITTED]


def test_a_purge_reaches_the_disk_and_what_is_on_its_way() -> None:
    node, engine = pushed_out()
    asks(engine, keys(1))
    out = engine.says(attach.Forget("weights changed"))
    assert states(out) == [KeyState.NEVER_STORED]
    assert sorted(one.key for one in node.dropped) == keys(1, 2, 3, 4, 101, 102, 103, 104)
    node.settle()
    assert node.states() == {}
    assert engine.sees(keys(1, 2)) == [KeyState.NEVER_STORED] * 2


def test_a_purge_during_a_write_drops_what_was_written() -> None:
    node = DiskNode()
    engine = node.engine()
    engine.store(keys(1))
    node.check()
    node.wait(0.1)
    engine.says(attach.Forget("weights changed"))
    assert node.states() == {SlotState.DOOMED: 1}
    node.settle()
    assert node.states() == {}
    assert [one.key for one in node.dropped] == keys(1)


def test_segments_make_room_one_by_one_and_never_pass_the_cap() -> None:
    node = DiskNode(slots=4, segments=3, per_segment=4)
    engine = node.engine()
    for start in range(1, 101, 4):
        spilt(node, engine, keys(*range(start, start + 4)))
        node.settle()
        assert len(node.devices[0].segments) <= 3
    assert node.count("disk_segments_reclaimed_total") > 20
    assert engine.sees(keys(1)) == [GONE]
    asks(engine, keys(93))
    assert len(node.under_way(wire.ReadExtent)) == 1


def test_a_segment_leaves_only_when_nobody_reads_it() -> None:
    node, engine = pushed_out(segments=3)
    asks(engine, keys(1), wait_ms=10_000)
    (read,) = node.under_way(wire.ReadExtent)
    asks(engine, keys(104), seq=2)
    node.end(node.under_way(wire.ReadExtent)[1].op)
    spilt(node, engine, keys(201, 202))
    assert not node.under_way(wire.ReclaimSegment)
    assert states(node.end(read.op)) == [HIT]
    (reclaim,) = node.under_way(wire.ReclaimSegment)
    assert reclaim.segment == read.extent.segment


def test_what_was_read_back_moves_on() -> None:
    node, engine = pushed_out(segments=3)
    asks(engine, keys(1))
    node.settle()
    engine.says(attach.Finish("request"))
    engine.store(keys(201, 202, 203, 204))
    node.check()
    node.wait(0.1)
    node.settle()
    assert node.count("disk_moved_bytes_total") == EXTENT
    assert engine.sees(keys(1)) == [LATE]
    assert engine.sees(keys(2)) == [GONE]


def test_a_directory_without_room_is_tried_again_later() -> None:
    node = DiskNode(segments=3)
    engine = node.engine()
    engine.store(keys(1))
    node.check()
    node.wait(0.1)
    node.fail(node.under_way(wire.WriteExtent)[0].op, "full")
    assert not node.under_way(wire.WriteExtent)
    node.wait(4.9)
    assert not node.pending
    node.wait(0.1)
    node.settle()
    assert node.count("disk_writes_completed_total") == 1


def test_copies_of_an_earlier_life_are_known_before_their_engine_comes() -> None:
    node = DiskNode()
    node.do(events.Incarnated(1))
    leader = Leader(node)
    leader.link()
    node.found(keys(1, 2), SHAPE)
    leader.tick()
    assert leader.tiers == dict.fromkeys(keys(1, 2), cluster.TIER_DISK)
    engine = node.engine()
    asks(engine, keys(1, 2))
    node.settle(wire.ReadExtent)
    assert engine.sees(keys(1, 2)) == [HIT, HIT]


def test_what_is_found_late_is_not_written_again() -> None:
    node = DiskNode(slots=8, disk={"max_writes": 1})
    engine = node.engine()
    engine.store(keys(1, 2))
    node.check()
    (write,) = node.under_way(wire.WriteExtent)
    node.found(keys(1, 2), SHAPE)
    node.settle()
    assert [one.key for one in node.dropped] == [write.key]
    assert node.count("disk_writes_completed_total") == 1


def test_what_is_found_in_a_segment_that_is_given_back_goes_with_it() -> None:
    node = DiskNode(segments=3)
    engine = node.engine()
    node.do(wire.DiskFound(0, [], [(0, 4 * EXTENT)], last=False))
    spilt(node, engine, keys(1, 2, 3, 4))
    spilt(node, engine, keys(5))
    (reclaim,) = node.under_way(wire.ReclaimSegment)
    assert reclaim.segment == 0
    node.do(wire.DiskFound(0, [Extent(keys(9)[0], NO_SALT, SHAPE, 0, PAGE, 99)], [], last=False))
    del node.pending[reclaim.op]
    node.do(wire.DiskReclaimed(reclaim.op))
    assert states(asks(engine, keys(9))) == [KeyState.NEVER_STORED]


def test_a_world_of_which_one_group_was_found_gets_the_others_from_its_engine() -> None:
    node = DiskNode(slots=8)
    node.found(keys(1), SHAPE)
    engine = node.engine(groups=[attach.GroupShape(0, 256, PAGE), attach.GroupShape(1, 128, PAGE)])
    asks(engine, keys(1))
    node.settle(wire.ReadExtent)
    assert engine.sees(keys(1)) == [HIT]
    assert engine.store(keys(2), group=1) == [0]


@pytest.mark.parametrize("engine_first", [True, False])
def test_copies_of_other_sizes_take_room_and_are_never_hits(engine_first: bool) -> None:
    node = DiskNode()
    other = SHAPE._replace(tokens=128, area_bytes=PAGE // 2)
    if not engine_first:
        node.found(keys(1), other)
    engine = node.engine()
    if engine_first:
        node.found(keys(1), other)
    assert node.core.disk.directories.all[0].file_bytes == EXTENT
    assert list(node.core.disk.directories.copies()) == []
    assert states(asks(engine, keys(1))) == [KeyState.NEVER_STORED]


def test_the_younger_of_two_copies_counts() -> None:
    node = DiskNode()
    old, young = (Extent(keys(1)[0], NO_SALT, SHAPE, 1, offset, seq) for offset, seq in ((0, 4), (EXTENT, 9)))
    node.do(wire.DiskFound(0, [old], [(1, 2 * EXTENT)], last=False))
    node.do(wire.DiskFound(0, [young], [(1, 2 * EXTENT)], last=False))
    node.do(wire.DiskFound(0, [old], [(1, 2 * EXTENT)], last=True))
    assert [copy.extent for copy in node.core.disk.directories.copies()] == [young]


def test_a_directory_too_small_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ValueError, match="d has room for 2 segments of 100 bytes, must have room for 3"):
        DirectorySettings("d", 2, 100)


def test_a_disk_smaller_than_the_pool_does_not_write_for_ever() -> None:
    node = DiskNode(slots=32, segments=3, per_segment=4)
    engine = node.engine()
    engine.store(keys(*range(1, 31)))
    node.check()
    for _ in range(20):
        node.wait(0.1)
        node.settle()
    assert node.count("disk_writes_completed_total") == 30
    gone = next(
        key for key in keys(*range(1, 31)) if key not in {one.key for one in node.core.disk.directories.copies()}
    )
    engine.sees([gone])
    node.wait(0.1)
    assert [one.key for one in node.under_way(wire.WriteExtent)] == [gone]


def left_alone(node: DiskNode, directory: int) -> None:
    """Its device fails until it is not used any more."""
    node.core.disk.directories.all[1 - directory].full_until = node.now + 100
    engine = node.engine("failing", fingerprint=b"g" * 32)
    engine.store(keys(901, 902, 903))
    node.check()
    node.wait(0.1)
    for one in node.under_way(wire.WriteExtent):
        node.fail(one.op, "io")
    while node.core.disk.directories.all[directory].breaker.closed:
        node.wait(0.1)
        node.fail(node.under_way(wire.WriteExtent)[0].op, "io")
    node.core.disk.directories.all[1 - directory].full_until = node.now


def test_what_lies_on_a_device_that_is_left_alone_is_written_to_another_one() -> None:
    node = DiskNode(slots=8, directories=2)
    engine = node.engine()
    spilt(node, engine, keys(1, 2))
    places = {copy.key: copy.segment.directory.number for copy in node.core.disk.directories.copies()}
    (lost,) = [key for key, place in places.items() if place == 0]
    left_alone(node, 0)
    node.wait(0.1)
    node.settle(wire.WriteExtent)
    places = {copy.key: copy.segment.directory.number for copy in node.core.disk.directories.copies()}
    assert set(places.values()) == {1} and lost in places
    assert lost in [one.key for one in node.dropped]


def test_a_device_that_comes_back_has_its_copies_still() -> None:
    node = DiskNode(slots=8, directories=2)
    engine = node.engine()
    spilt(node, engine, keys(1, 2))
    written = node.count("disk_writes_completed_total")
    left_alone(node, 0)
    node.core.disk.directories.all[1].full_until = node.now + 100
    node.wait(1.0)
    node.end(node.under_way(wire.ProbeDirectory)[0].op)
    assert all(chunk.key not in keys(1, 2) for chunk in node.core.holdings.index.values() if chunk.writing)
    node.settle()
    assert node.count("disk_writes_completed_total") == written + 3
    assert not node.dropped
