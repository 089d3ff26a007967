"""The leader's core: an index that is not what a worker holds is noticed by digests, and made right."""

import pytest

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events
from blockyard.leader.core.instructions import NoteDrift
from support.leader_world import DISK, HOST, WORLD, World, change, closed, delta, digests, hello, key, sent, snapshot

HELD = [change(1), change(2), change(3, HOST | DISK)]


def replacement(seq: int, number: int, *changes: wire.Change, first: int = 0, last: int = 255) -> wire.Replacement:
    """Of the bucket of key `number`."""
    return wire.Replacement(seq, [WORLD], list(changes), key(number)[0], first, last)


def drifted(world: World) -> float:
    return world.counters.get("blockyard_leader_drifted_buckets_total")


def all_held(world: World) -> dict[int, int]:
    return {n: world.holders(n)["n1"] for n in range(200) if world.holders(n)}


@pytest.mark.parametrize(
    ("wrong", "number"),
    [(change(2, 0), 2), (change(4), 4), (change(3, HOST), 3), (change(2, DISK), 2)],
    ids=["lost", "extra", "a tier lost", "another tier"],
)
def test_an_entry_that_is_wrong_is_noticed_told_and_replaced(wrong: wire.Change, number: int) -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.corrupt("n1", wrong)
    done = world.say(link, digests(0, *HELD))
    assert [repair.buckets for repair in sent(done, wire.Repair)] == [bytes([key(number)[0]])]
    assert NoteDrift(link, "n1", (key(number)[0],)) in done
    assert drifted(world) == 1
    assert world.core.partial
    done = world.say(link, replacement(1, number, *(one for one in HELD if one.key == key(number))))
    assert all_held(world) == {1: HOST, 2: HOST, 3: HOST | DISK}
    assert not world.core.partial
    assert world.counters.get("blockyard_leader_repaired_buckets_total") == 1
    assert world.say(link, digests(1, *HELD)) == []
    assert drifted(world) == 1


def test_what_drifts_while_a_worker_is_quiet_is_noticed_within_an_interval() -> None:
    """It has told its digests, and does not tell them again as nothing has changed."""
    world = World(digest_interval=10.0)
    link = world.worker("n1", *HELD)
    assert world.say(link, digests(0, *HELD)) == []
    world.corrupt("n1", change(2, 0))
    assert sent(world.tick(9.0), wire.Repair) == []
    assert [repair.buckets for repair in sent(world.tick(1.1), wire.Repair)] == [bytes([key(2)[0]])]


def test_digests_of_what_is_not_applied_yet_wait_for_it() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    ahead = digests(2, *HELD, change(4), change(5))
    assert sent(world.say(link, ahead, delta(1, change(4))), wire.Repair) == []
    world.say(link, delta(2, change(5)))
    assert sent(world.tick(), wire.Repair) == []
    world.corrupt("n1", change(5, 0))
    assert sent(world.tick(60.0), wire.Repair)


def test_digests_that_a_delta_has_overtaken_say_nothing() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.say(link, delta(1, change(4)))
    assert world.say(link, digests(0, *HELD)) == []
    assert sent(world.tick(60.0), wire.Repair) == []
    assert drifted(world) == 0


def test_digests_that_were_lost_are_made_up_for_by_the_next() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.corrupt("n1", change(2, 0))
    assert sent(world.tick(60.0), wire.Repair) == []
    world.say(link, delta(1, change(4)))
    assert sent(world.say(link, digests(1, *HELD, change(4))), wire.Repair)


def test_deltas_before_and_after_a_repair_count_in_their_order() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.corrupt("n1", change(2, 0), change(1, 0))
    (repair,) = sent(world.say(link, digests(0, *HELD)), wire.Repair)
    assert set(repair.buckets) == {key(1)[0], key(2)[0]}
    world.say(link, delta(1, change(1, 0)), replacement(2, 1), delta(3, change(1, DISK)), replacement(4, 2, change(2)))
    assert all_held(world) == {1: DISK, 2: HOST, 3: HOST | DISK}
    assert not world.core.partial


def test_a_repair_leaves_other_workers_and_other_buckets_alone() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.worker("n2", change(1), change(2))
    world.say(link, replacement(1, 1))
    assert world.holders(1) == {"n2": HOST}
    assert world.holders(2) == {"n1": HOST, "n2": HOST}


def test_a_bucket_in_pieces_is_repaired_piece_by_piece() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.corrupt("n1", change(1, 0))
    world.say(link, digests(0, *HELD))
    second = key(1)[1]
    world.say(link, replacement(1, 1, last=second - 1))
    assert world.holders(1) == {} and world.core.partial
    world.say(link, replacement(2, 1, change(1), first=second))
    assert world.holders(1) == {"n1": HOST} and not world.core.partial


def test_where_much_has_drifted_a_snapshot_is_asked_for() -> None:
    world = World()
    held = [change(number) for number in range(100)]
    link = world.worker("n1", *held)
    world.corrupt("n1", *(change(number, 0) for number in range(wire.MAX_REPAIRED + 1)))
    done = world.say(link, digests(0, *held))
    assert sent(done, wire.Repair) == []
    assert [resync.from_seq for resync in sent(done, wire.Resync)] == [0]
    assert world.core.partial
    world.say(link, *snapshot(1, *held))
    assert len(all_held(world)) == 100
    assert not world.core.partial


def test_a_repair_that_does_not_come_is_asked_for_as_a_snapshot() -> None:
    world = World(resync_patience=5.0)
    link = world.worker("n1", *HELD)
    world.corrupt("n1", change(2, 0))
    world.say(link, digests(0, *HELD))
    assert sent(world.tick(4.9), wire.Resync) == []
    assert [resync.from_seq for resync in sent(world.tick(0.2), wire.Resync)] == [0]
    world.say(link, *snapshot(1, *HELD))
    assert not world.core.partial


def test_what_no_repair_helps_against_is_looked_at_ever_more_rarely() -> None:
    world = World(digest_interval=10.0)
    link = world.worker("n1", *HELD)
    asked = 0
    for seq in range(1, 100):
        world.say(link, delta(seq, change(5)))
        done = world.say(link, digests(seq)) + world.tick(10.0)
        if sent(done, wire.Resync) or sent(done, wire.Repair):
            asked += 1
            world.say(link, *snapshot(seq, *HELD))
    assert 4 <= asked <= 8


def test_a_lost_link_makes_repairs_and_digests_void() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.corrupt("n1", change(2, 0))
    world.say(link, digests(0, *HELD))
    world.put(events.LinkClosed(link))
    again, _ = world.open(hello())
    assert not world.core.partial
    assert sent(world.tick(60.0), wire.Repair) == []
    assert sent(world.say(again, digests(0, *HELD)), wire.Repair)


def test_a_repair_under_way_when_its_link_broke_is_applied_from_the_range() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.corrupt("n1", change(2, 0))
    world.say(link, digests(0, *HELD))
    world.put(events.LinkClosed(link))
    again, done = world.open(hello(next_seq=2))
    assert [welcome.expect_seq for welcome in sent(done, wire.LinkWelcome)] == [1]
    world.say(again, replacement(1, 2, change(2)))
    assert all_held(world) == {1: HOST, 2: HOST, 3: HOST | DISK}
    assert not world.core.partial


def test_a_snapshot_swapped_in_brings_its_own_digests() -> None:
    world = World()
    link = world.worker("n1", *HELD)
    world.say(link, *snapshot(4, change(7), change(8, DISK)))
    assert world.say(link, digests(4, change(7), change(8, DISK))) == []
    assert drifted(world) == 0


def test_claims_of_a_new_incarnation_or_forgotten_ones_start_with_none() -> None:
    world = World(claim_grace=10.0)
    link = world.worker("n1", *HELD)
    world.say(link, digests(0, *HELD))
    assert closed(world.register("n1", 9))
    again, _ = world.open(hello(incarnation=9))
    world.say(again, *snapshot(0, change(5)))
    assert sent(world.tick(60.0), wire.Repair) == []
    world.put(events.LinkClosed(again))
    world.tick(11.0)
    third, _ = world.open(hello(incarnation=9))
    world.say(third, *snapshot(0), digests(0))
    assert drifted(world) == 0
