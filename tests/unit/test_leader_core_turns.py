"""The leader's core: a few workers at a time send their snapshots, each a few parts ahead of what is taken in."""

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events
from support.leader_world import World, change, closed, hello, sent, snapshot


def credits(done: list[object]) -> dict[int, list[int]]:
    """Parts granted, by link."""
    found: dict[int, list[int]] = {}
    for one in done:
        message = getattr(one, "message", None)
        if isinstance(message, wire.SnapshotCredit):
            found.setdefault(one.link, []).append(message.parts)  # type: ignore[attr-defined]
    return found


def offering(world: World, *nodes: str) -> tuple[list[int], dict[int, list[int]]]:
    """Registered workers that offer a snapshot, in this order; what they were granted."""
    links, granted = [], {}
    for node in nodes:
        world.register(node)
        link, _ = world.open(hello(node))
        links.append(link)
        granted |= credits([*world.say(link, wire.SnapshotOffer(0, 3))])
    return links, granted


def finish(world: World, link: int) -> dict[int, list[int]]:
    return credits([*world.say(link, *snapshot(0, change(link)))])


def test_only_so_many_send_at_once_and_the_rest_follow_in_their_order() -> None:
    world = World(snapshots_at_once=2, snapshot_window=4)
    links, granted = offering(world, "n1", "n2", "n3", "n4")
    assert granted == {links[0]: [4], links[1]: [4]}
    assert finish(world, links[1]) == {links[2]: [4]}
    assert finish(world, links[0]) == {links[3]: [4]}
    assert world.core.partial
    assert finish(world, links[2]) == finish(world, links[3]) == {}
    assert not world.core.partial


def test_a_worker_with_nothing_needs_no_turn() -> None:
    world = World(snapshots_at_once=1)
    offering(world, "n1")
    world.register("n2")
    link, _ = world.open(hello("n2"))
    world.say(link, *snapshot(0))
    assert {view.node: view.state for view in world.core.workers()} == {"n1": "partial", "n2": "live"}


def test_credit_grows_with_what_was_taken_in() -> None:
    world = World(snapshot_window=4)
    (link,), granted = offering(world, "n1")
    assert granted == {link: [4]}
    begin, *parts, _ = snapshot(0, *(change(number) for number in range(12)))
    world.say(link, begin)
    told = [credits([*world.say(link, part)]) for part in parts]
    assert told == [{}, {link: [6]}, {}, {link: [8]}, {}, {link: [10]}]


def test_who_waits_is_not_asked_again_however_long() -> None:
    world = World(snapshots_at_once=1, resync_patience=5.0)
    (first, second), _ = offering(world, "n1", "n2")
    begin, part, *_ = snapshot(0, *(change(number) for number in range(100)))
    world.say(first, begin)
    for _ in range(10):
        world.say(first, part)
        assert sent(world.tick(4.0), wire.Resync) == []
    details = [one.detail for one in world.core.degraded() if "n2" in one.detail]
    assert details == ["worker n2 owes a part of its claims; it waits to send its snapshot"]
    assert second in world.core.dialogue.turns.waiting


def test_who_stalls_loses_its_turn_and_comes_last() -> None:
    world = World(snapshots_at_once=1, resync_patience=5.0)
    (first, second, third), _ = offering(world, "n1", "n2", "n3")
    world.say(first, snapshot(0, change(1))[0])
    done = world.tick(5.1)
    assert credits([*done]) == {second: [8]}
    assert [resync.from_seq for resync in sent(done, wire.Resync)] == [0]
    assert credits([*world.say(first, wire.SnapshotOffer(1, 3))]) == {}
    assert finish(world, second) == {third: [8]}
    assert finish(world, third) == {first: [8]}


def test_who_never_begins_loses_its_turn() -> None:
    world = World(snapshots_at_once=1, resync_patience=5.0)
    (_, second), _ = offering(world, "n1", "n2")
    assert credits([*world.tick(5.1)]) == {second: [8]}


def test_a_link_that_ends_gives_its_turn_and_its_place_back() -> None:
    world = World(snapshots_at_once=1)
    (first, second, third), _ = offering(world, "n1", "n2", "n3")
    assert credits([*world.put(events.LinkClosed(second))]) == {}
    assert credits([*world.put(events.LinkClosed(first))]) == {third: [8]}


def test_a_registration_that_ends_gives_its_turn_back() -> None:
    world = World(snapshots_at_once=1)
    (first, second), _ = offering(world, "n1", "n2")
    done = world.unregister("n1")
    assert closed(done) == {first: "unregistered"}
    assert credits([*done]) == {second: [8]}


def test_leadership_lost_ends_all_turns() -> None:
    world = World(snapshots_at_once=1)
    offering(world, "n1", "n2")
    world.put(events.LostLeadership())
    turns = world.core.dialogue.turns
    assert not turns.given and not turns.waiting


def test_a_snapshot_begun_anew_keeps_its_turn() -> None:
    world = World(snapshots_at_once=1)
    (first, second), _ = offering(world, "n1", "n2")
    world.say(first, *snapshot(0, change(1))[:2])
    done = world.say(first, wire.SnapshotOffer(1, 5))
    assert sent(done, wire.SnapshotCredit) == [wire.SnapshotCredit(1, 8)]
    assert credits([*world.say(first, *snapshot(1, change(1)))]) == {second: [8]}


def test_an_offer_in_place_of_deltas_says_that_something_is_owed() -> None:
    """A worker whose outbox ran over waits for its turn: until then the claims before it are not all."""
    world = World(snapshots_at_once=1)
    link = world.worker("n2", change(1))
    offering(world, "n1")
    assert credits([*world.say(link, wire.SnapshotOffer(1, 5))]) == {}
    assert {view.node: view.state for view in world.core.workers()} == {"n1": "partial", "n2": "partial"}
    assert world.holders(1) == {"n2": 1}


def test_a_snapshot_that_is_not_whole_ends_its_turn() -> None:
    world = World(snapshots_at_once=1)
    (first, second), _ = offering(world, "n1", "n2")
    begin, _, end = snapshot(0, change(1))
    assert credits([*world.say(first, begin, end)]) == {second: [8]}
