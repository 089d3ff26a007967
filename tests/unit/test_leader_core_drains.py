"""The leader's core: what only one worker holds is copied to others before it goes."""

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import drains, events
from blockyard.leader.core.drains import Drain
from blockyard.leader.core.instructions import Instruction, SendTo
from blockyard.leader.core.requests import Accepted, DrainAsked, UndrainAsked
from support.leader_world import DISK, WORLD, World, change, delta, hello, key, sent, snapshot


def drained(world: World, node: str = "a") -> Drain:
    return world.core.direction.drains.by_node[node]


def to(done: list[Instruction], link: int) -> list[wire.Order]:
    """The orders on one link."""
    return sent([one for one in done if isinstance(one, SendTo) and one.link == link], wire.Order)


def begun(world: World, node: str = "a") -> list[Instruction]:
    answer, done = world.ask(DrainAsked(node))
    assert isinstance(answer, Accepted)
    return done + world.tick()


def full(world: World, node: str, *numbers: int) -> int:
    """A worker that serves the world, and holds these."""
    return world.peer(node, *map(change, numbers))


def test_what_only_it_holds_is_copied_to_who_serves_the_world() -> None:
    world = World()
    a, b = full(world, "a", 1, 2, 3), full(world, "b", 3)
    done = begun(world)
    (order,) = to(done, a)
    assert order.kind == "drain"
    world.say(a, wire.OrderReport(order.job, "progress", 0, 2))
    (copy,) = to(done, b)
    assert (copy.kind, copy.node, set(copy.keys)) == ("copy", "a", {key(1), key(2)})
    assert copy.fingerprint == WORLD.fingerprint
    world.say(b, wire.OrderReport(copy.job, "done", 2), delta(1, change(1), change(2), worlds=()))
    for _ in range(9):
        world.tick()
    found = drained(world)
    assert (found.state, found.copied, found.left) == ("done", 2, 0)


def test_what_changed_last_is_copied_first() -> None:
    world = World()
    count = drains.BATCH + 6
    a = full(world, "a", *range(count))
    b = full(world, "b", 900)
    world.say(a, delta(1, change(3), worlds=()), delta(2, change(5, DISK), worlds=()))
    (first, *_) = to(begun(world), b)
    assert first.keys[:2] == [key(5), key(3)]


def test_so_many_copies_at_a_time() -> None:
    world = World()
    full(world, "a", *range(drains.BATCH * (drains.IN_FLIGHT + 2)))
    b = full(world, "b", 9000)
    done = begun(world)
    copies = to(done, b)
    assert [len(copy.keys) for copy in copies] == [drains.BATCH] * drains.IN_FLIGHT
    assert to(world.tick(), b) == []
    world.say(b, wire.OrderReport(copies[0].job, "done", drains.BATCH))
    assert len(to(world.tick(), b)) == 1


def test_the_worker_with_more_room_is_taken_and_one_that_fails_is_left_alone() -> None:
    world = World()
    full(world, "a", 1)
    b, c = full(world, "b", 2), full(world, "c", 3)
    world.say(b, wire.WorkerStats(100, 90, 1, 0, 0, []))
    world.say(c, wire.WorkerStats(100, 10, 1, 0, 0, []))
    (copy,) = to(begun(world), c)
    world.say(c, wire.OrderReport(copy.job, "refused", 0, 1, "no-room"))
    world.tick()
    assert drained(world).state == "stuck"
    assert [order.kind for order in to(world.tick(drains.REST_S), b)] == ["copy"]


def test_nobody_else_of_the_world_leaves_it_stuck_with_the_reason() -> None:
    world = World()
    full(world, "a", 1, 2)
    world.register("b", peer="b:1")
    link, _ = world.open(hello("b"))
    world.say(link, wire.SnapshotBegin(0, 0, []), wire.SnapshotEnd(0, 0))
    begun(world)
    found = drained(world)
    assert (found.state, found.left, found.unplaceable) == ("stuck", 2, 2)
    assert "no other worker serves" in found.reason


def test_two_that_are_drained_give_nothing_to_each_other() -> None:
    world = World()
    a, b, c = full(world, "a", 1, 2), full(world, "b", 1), full(world, "c", 9)
    world.ask(DrainAsked("b"))
    done = begun(world)
    copies = [order for order in to(done, c) if order.kind == "copy"]
    assert {name for order in copies for name in order.keys} == {key(1), key(2)}
    assert [order.kind for order in to(done, a) + to(done, b) if order.kind == "copy"] == []


def test_it_waits_while_the_leader_does_not_know_all() -> None:
    world = World()
    a = full(world, "a", 1)
    world.register("b", peer="b:1")
    link, _ = world.open(hello("b"))
    (order,) = to(begun(world), a)
    world.say(a, wire.OrderReport(order.job, "done"))
    assert "does not know" in drained(world).obstacle
    world.say(link, *snapshot(0, change(1)))
    world.tick()
    assert (drained(world).state, drained(world).left) == ("done", 0)


def test_a_drain_that_is_taken_back_copies_no_more() -> None:
    world = World()
    a = full(world, "a", *range(drains.BATCH * 9))
    b = full(world, "b", 9000)
    copies = to(begun(world), b)
    answer, done = world.ask(UndrainAsked("a"))
    assert isinstance(answer, Accepted)
    assert [order.kind for order in to(done, a)] == ["undrain"]
    world.say(b, wire.OrderReport(copies[0].job, "done", 64))
    assert to(world.tick(), b) == []
    assert world.core.direction.drains.by_node == {}


def test_a_worker_that_restarts_is_told_again() -> None:
    world = World()
    a = full(world, "a", 1)
    (order,) = to(begun(world), a)
    world.say(a, wire.OrderReport(order.job, "done"))
    again = world.peer("a", change(1), incarnation=6)
    assert [one.kind for one in to(world.tick(), again)] == ["drain"]


def test_it_is_not_done_before_the_worker_has_said_that_it_takes_in_nothing_new() -> None:
    world = World()
    a = full(world, "a", 1)
    full(world, "b", 1)
    (order,) = to(begun(world), a)
    assert (drained(world).state, drained(world).left) == ("looking", 0)
    world.say(a, wire.OrderReport(order.job, "progress"))
    for _ in range(9):
        world.tick()
    assert drained(world).state == "done"


def test_a_worker_that_refuses_is_not_emptied() -> None:
    world = World()
    a, b = full(world, "a", 1), full(world, "b", 2)
    (order,) = to(begun(world), a)
    world.say(a, wire.OrderReport(order.job, "refused", reason="unknown"))
    world.tick()
    assert drained(world).obstacle == "the worker refused: unknown"
    assert to(world.tick(), b) == []


def test_a_drain_ends_with_the_registration_and_with_the_term() -> None:
    world = World()
    full(world, "a", 1)
    full(world, "b", 1)
    begun(world, "a")
    begun(world, "b")
    world.unregister("a")
    world.tick()
    assert list(world.core.direction.drains.by_node) == ["b"]
    world.put(events.LostLeadership())
    assert world.core.direction.drains.by_node == {}


def test_a_large_index_is_gone_through_in_steps() -> None:
    world = World()
    full(world, "a", *range(2000))
    full(world, "b", *range(2000))
    world.ask(DrainAsked("a"))
    before, drains.LOOKED_AT = drains.LOOKED_AT, 600
    try:
        ticks = 0
        while drained(world).left is None:
            world.tick()
            ticks += 1
    finally:
        drains.LOOKED_AT = before
    assert ticks >= 3
    assert drained(world).left == 0
