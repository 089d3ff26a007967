"""The leader's core: numbered claims that come twice, late, with gaps, out of order or across a snapshot."""

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events
from support.leader_world import DISK, HOST, World, change, closed, delta, hello, key, sent, snapshot


def test_deltas_move_a_key_through_tiers_and_out() -> None:
    world = World()
    link = world.worker()
    world.say(link, delta(1, change(1, HOST)))
    assert world.holders(1) == {"n1": HOST}
    world.say(link, delta(2, change(1, HOST | DISK)))
    assert world.holders(1) == {"n1": HOST | DISK}
    world.say(link, delta(3, change(1, 0)))
    assert world.holders(1) == {}
    assert [(step.tiers, step.cause) for step in world.core.story(key(1))] == [
        (HOST, "delta 1"),
        (HOST | DISK, "delta 2"),
        (0, "delta 3"),
    ]


def test_acks_are_cumulative_and_sent_once() -> None:
    world = World()
    link = world.worker()
    world.say(link, delta(1, change(1)), delta(2, change(2)), delta(3, change(3)))
    assert sent(world.tick(), wire.Ack) == [wire.Ack(3)]
    assert world.tick() == []


def test_a_duplicate_changes_nothing_and_is_acknowledged_again() -> None:
    world = World()
    link = world.worker()
    world.say(link, delta(1, change(1)), delta(2, change(1, 0)))
    world.tick()
    world.say(link, delta(1, change(1)))
    assert world.holders(1) == {}
    assert sent(world.tick(), wire.Ack) == [wire.Ack(2)]


def test_a_gap_asks_once_for_the_range_and_is_healed_by_it() -> None:
    world = World()
    link = world.worker()
    done = world.say(link, delta(1, change(1)), delta(3, change(3)), delta(4, change(4)))
    assert [resync.from_seq for resync in sent(done, wire.Resync)] == [2]
    assert world.core.partial
    assert world.holders(3) == {}
    world.say(link, delta(2, change(2)), delta(3, change(3)), delta(4, change(4)))
    assert not world.core.partial
    assert [world.holders(number) for number in (1, 2, 3, 4)] == [{"n1": HOST}] * 4
    assert world.counters.get("blockyard_leader_delta_gaps_total") == 1


def test_reordered_deltas_are_applied_in_their_order() -> None:
    world = World()
    link = world.worker()
    world.say(link, delta(2, change(1, 0)), delta(1, change(1)), delta(2, change(1, 0)))
    assert world.holders(1) == {}
    assert not world.core.partial


def test_a_range_that_does_not_come_is_asked_for_again_as_a_snapshot() -> None:
    world = World(resync_patience=5.0)
    link = world.worker()
    world.say(link, delta(2, change(2)))
    assert sent(world.tick(4.0), wire.Resync) == []
    assert [resync.from_seq for resync in sent(world.tick(2.0), wire.Resync)] == [0]
    world.say(link, *snapshot(2, change(1), change(2)))
    assert world.holders(1) == world.holders(2) == {"n1": HOST}
    assert not world.core.partial


def test_a_snapshot_replaces_everything_at_its_end_and_not_before() -> None:
    world = World()
    link = world.worker("n1", change(1), change(2))
    begin, *parts, end = snapshot(7, change(2), change(3), change(4))
    world.say(link, begin, *parts)
    assert [bool(world.holders(number)) for number in (1, 2, 3, 4)] == [True, True, False, False]
    world.say(link, end)
    assert [bool(world.holders(number)) for number in (1, 2, 3, 4)] == [False, True, True, True]
    assert sent(world.tick(), wire.Ack) == [wire.Ack(7)]
    assert world.core.index.swept
    assert world.core.index.keys == world.core.index.copies == 3


def test_deltas_that_pass_during_a_snapshot_are_asked_for_at_its_end() -> None:
    world = World()
    link = world.worker("n1", change(1))
    begin, *parts, end = snapshot(2, change(1), change(2))
    world.say(link, begin, delta(3, change(1, 0)), *parts)
    done = world.say(link, delta(4, change(5)), end)
    assert [resync.from_seq for resync in sent(done, wire.Resync)] == [3]
    assert world.core.partial
    world.say(link, delta(3, change(1, 0)), delta(4, change(5)))
    assert [bool(world.holders(number)) for number in (1, 2, 5)] == [False, True, True]
    assert not world.core.partial


def test_deltas_older_than_the_snapshot_are_part_of_it() -> None:
    world = World()
    link = world.worker("n1", change(1))
    world.say(link, *snapshot(5, change(2)), delta(4, change(1)), delta(5, change(1)))
    assert world.holders(1) == {}
    world.say(link, delta(6, change(1)))
    assert world.holders(1) == {"n1": HOST}


def test_a_snapshot_older_than_what_is_applied_is_passed_over() -> None:
    world = World()
    link = world.worker("n1", change(1))
    world.say(link, delta(1, change(2)), delta(2, change(3)))
    world.say(link, *snapshot(1, change(1), change(2)))
    assert world.holders(3) == {"n1": HOST}
    assert not world.core.partial
    world.say(link, delta(3, change(4)))
    assert world.holders(4) == {"n1": HOST}


def test_a_second_begin_starts_the_collection_anew() -> None:
    world = World()
    link = world.worker("n1", change(1))
    begin, part, _ = snapshot(3, change(2))
    world.say(link, begin, part, *snapshot(4, change(3)))
    assert [bool(world.holders(number)) for number in (1, 2, 3)] == [False, False, True]


def test_a_snapshot_that_lacks_a_part_is_not_swapped_in() -> None:
    world = World()
    link = world.worker("n1", change(1))
    begin, first, _, end = snapshot(3, change(1), change(2), change(3))
    done = world.say(link, begin, first, end)
    assert [resync.from_seq for resync in sent(done, wire.Resync)] == [0]
    assert (world.holders(1), world.holders(2)) == ({"n1": HOST}, {})
    assert world.core.partial


def test_a_worker_whose_snapshots_keep_failing_is_not_asked_without_pause() -> None:
    world = World(resync_patience=5.0)
    link = world.worker("n1", change(1))
    begin, _, end = snapshot(3, change(1))
    assert len(sent(world.say(link, begin, end), wire.Resync)) == 1
    assert sent(world.say(link, begin, end), wire.Resync) == []
    assert [resync.from_seq for resync in sent(world.tick(5.1), wire.Resync)] != []


def test_a_snapshot_that_stops_half_way_is_asked_for_again() -> None:
    world = World(resync_patience=5.0)
    world.register()
    link, _ = world.open(hello())
    begin, part, _ = snapshot(0, change(1))
    world.say(link, begin, part)
    world.tick(4.0)
    assert [resync.from_seq for resync in sent(world.tick(1.5), wire.Resync)] == [0]
    world.say(link, *snapshot(0, change(1)))
    assert not world.core.partial


def test_a_link_lost_within_a_snapshot_leaves_the_claims_before_it() -> None:
    world = World()
    link = world.worker("n1", change(1))
    begin, part, _ = snapshot(3, change(2))
    world.say(link, begin, part)
    world.put(events.LinkClosed(link))
    assert (world.holders(1), world.holders(2)) == ({"n1": HOST}, {})
    again, done = world.open(hello(next_seq=4))
    assert [welcome.expect_seq for welcome in sent(done, wire.LinkWelcome)] == [1]
    world.say(again, *snapshot(3, change(2)))
    assert (world.holders(1), world.holders(2)) == ({}, {"n1": HOST})


def test_deltas_sent_on_a_lost_link_are_expected_on_the_next() -> None:
    world = World()
    link = world.worker("n1", change(1))
    world.say(link, delta(1, change(2)))
    world.put(events.LinkClosed(link))
    again, done = world.open(hello(next_seq=4))
    assert [welcome.expect_seq for welcome in sent(done, wire.LinkWelcome)] == [2]
    assert world.core.partial
    world.say(again, delta(2, change(3)), delta(3, change(4)))
    assert not world.core.partial


def test_a_worker_that_numbers_anew_within_one_incarnation_owes_a_snapshot() -> None:
    world = World()
    link = world.worker("n1")
    world.say(link, delta(1, change(1)), delta(2, change(2)))
    _, done = world.open(hello(next_seq=1))
    assert [welcome.expect_seq for welcome in sent(done, wire.LinkWelcome)] == [0]


def test_before_the_first_snapshot_deltas_do_not_count() -> None:
    world = World()
    world.register()
    link, _ = world.open(hello())
    world.say(link, delta(1, change(1)))
    assert world.holders(1) == {}
    world.say(link, *snapshot(1, change(1)))
    assert world.holders(1) == {"n1": HOST}


def test_a_world_that_was_not_announced_makes_the_claims_doubtful() -> None:
    world = World()
    link = world.worker("n1", change(1))
    done = world.say(link, delta(1, change(2, world=4)))
    (resync,) = sent(done, wire.Resync)
    assert resync.from_seq == 0
    assert "world 4" in resync.reason
    assert world.holders(2) == {}
    assert world.core.partial


def test_parts_and_ends_without_a_begin_are_counted_and_change_nothing() -> None:
    world = World()
    link = world.worker("n1", change(1))
    world.say(link, wire.SnapshotPart([change(2)]), wire.SnapshotEnd(9, 1))
    assert world.counters.get("blockyard_leader_frames_refused_total", reason="unexpected") == 2
    assert (world.holders(1), world.holders(2)) == ({"n1": HOST}, {})


def test_a_worker_that_claims_too_much_is_cut_off_and_its_claims_go() -> None:
    world = World(max_keys_per_worker=3)
    link = world.worker("n1", change(1), change(2))
    assert closed(world.say(link, delta(1, change(3), change(4)))) == {link: "too-many-keys"}
    assert world.holders(1) == {}


def test_the_journal_is_bounded() -> None:
    world = World(journal_changes=3)
    link = world.worker()
    for seq in range(1, 6):
        world.say(link, delta(seq, change(1, HOST if seq % 2 else 0)))
    assert [step.cause for step in world.core.story(key(1))] == ["delta 3", "delta 4", "delta 5"]


def test_what_passes_during_a_snapshot_is_not_acknowledged() -> None:
    world = World()
    link = world.worker("n1", change(1))
    begin, *_ = snapshot(0, change(1))
    world.say(link, begin, delta(1, change(2)))
    assert sent(world.tick(), wire.Ack) == []


def test_a_gap_right_after_a_link_opened_in_step_is_asked_for_at_once() -> None:
    world = World()
    world.worker("n1", change(1))
    link, _ = world.open(hello(next_seq=1))
    done = world.say(link, delta(2, change(2)))
    assert [resync.from_seq for resync in sent(done, wire.Resync)] == [1]
