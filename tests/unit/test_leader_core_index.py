"""The leader's ownership index: placements of many holders, longest prefixes, and what sweeping leaves."""

import gc

from blockyard.leader.core.matching import Prefix
from blockyard.leader.core.ownership import SHARDS, Ownership, Shard
from support.leader_world import DISK, GPU, HOST, World, change, delta, key, snapshot


def keys(*numbers: int) -> list[bytes]:
    return [key(number) for number in numbers]


def test_longest_prefix_per_worker_and_tier() -> None:
    world = World()
    world.worker("n1", change(1, HOST | GPU), change(2, HOST), change(3, DISK))
    world.worker("n2", change(1, HOST), change(2, HOST), change(4, HOST))
    world.worker("n3", change(2, HOST))
    assert world.core.match(keys(1, 2, 3, 4)) == [
        Prefix("n1", length=3, gpu=1, host=2, disk=0),
        Prefix("n2", length=2, gpu=0, host=2, disk=0),
    ]


def test_matching_nothing_known_finds_nobody() -> None:
    world = World()
    world.worker("n1", change(2))
    assert world.core.match(keys(1, 2)) == []


def test_a_tier_that_ends_does_not_begin_again() -> None:
    world = World()
    world.worker("n1", change(1, HOST), change(2, DISK), change(3, HOST))
    assert world.core.match(keys(1, 2, 3)) == [Prefix("n1", length=3, gpu=0, host=1, disk=0)]


def test_a_prefix_all_workers_hold_alike_is_whole_for_each() -> None:
    world = World()
    prefix = [change(number, HOST) for number in range(50)]
    for node in ("n1", "n2", "n3"):
        world.worker(node, *prefix)
    assert world.core.match([one.key for one in prefix]) == [
        Prefix(node, length=50, gpu=0, host=50, disk=0) for node in ("n1", "n2", "n3")
    ]


def test_a_snapshot_under_way_is_seen_by_no_match() -> None:
    world = World()
    link = world.worker("n1", change(1))
    world.say(link, *snapshot(3, change(2))[:-1])
    assert world.core.match(keys(2)) == []
    assert world.core.match(keys(1)) == [Prefix("n1", length=1, gpu=0, host=1, disk=0)]


def test_what_a_gone_worker_leaves_is_swept_in_bounded_steps() -> None:
    world = World(sweep_keys=100)
    world.worker("n1", *(change(number) for number in range(1000)))
    world.worker("n2", *(change(number) for number in range(500)))
    world.unregister("n1")
    index = world.core.index
    assert index.copies == 500
    assert index.keys == 1000
    ticks = 0
    while not index.swept:
        world.tick()
        ticks += 1
        assert ticks <= SHARDS
    assert ticks > 1
    assert index.keys == index.copies == 500


def test_a_key_that_comes_back_before_the_sweep_has_only_its_new_holder() -> None:
    world = World()
    world.worker("n1", change(1, HOST))
    world.register("n1", incarnation=9)
    world.worker("n1", change(1, DISK), incarnation=9)
    assert world.holders(1) == {"n1": DISK}
    world.tick()
    assert world.core.index.copies == 1


def test_keys_held_by_many_are_counted_once_per_worker() -> None:
    world = World()
    links = [world.worker(f"n{number}", change(1), change(2)) for number in range(20)]
    assert (world.core.index.keys, world.core.index.copies) == (2, 40)
    for link in links[:15]:
        world.say(link, delta(1, change(1, 0)))
    assert len(world.holders(1)) == 5
    assert world.core.index.copies == 25


def test_once_frozen_the_index_is_not_read_by_the_garbage_collector() -> None:
    index = Ownership()
    gc.collect()
    gc.freeze()
    try:
        for number in range(3):
            index.apply(index.open(f"n{number}"), [change(one) for one in range(2000)])
            gc.collect()
        assert index.keys == 2000
        assert not any(isinstance(one, Shard) for one in gc.get_objects())
    finally:
        gc.unfreeze()
    assert sum(isinstance(one, Shard) for one in gc.get_objects()) >= SHARDS
