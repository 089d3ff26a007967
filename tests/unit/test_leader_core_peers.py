"""The leader's core: who is told of which peers, and who else holds what."""

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events, neighbours
from support.leader_world import DISK, GPU, HOST, World, change, delta, hello, key, sent


def asked(world: World, link: int, *numbers: int, prefix: bool = True) -> wire.Located:
    """The answer to one question."""
    (located,) = sent(world.say(link, wire.Locate(7, [key(number) for number in numbers], prefix)), wire.Located)
    assert located.number == 7
    return located


def spans(located: wire.Located) -> list[tuple[int, int, str, int]]:
    return [(span.first, span.count, span.node, span.tiers) for span in located.spans]


def names(done: list[object]) -> dict[int, list[str]]:
    """Which peers each link was told of."""
    told = [one for one in done if isinstance(getattr(one, "message", None), wire.Peers)]
    return {one.link: [peer.node for peer in one.message.peers] for one in told}  # type: ignore[attr-defined]


def test_each_is_told_of_all_others_once_and_again_when_one_goes() -> None:
    world = World()
    a, b, c = (world.peer(node) for node in "abc")
    assert names(world.tick()) == {a: ["b", "c"], b: ["a", "c"], c: ["a", "b"]}
    assert names(world.tick()) == {}
    world.put(events.LinkClosed(c))
    assert names(world.tick()) == {a: ["b"], b: ["a"]}
    world.unregister("b")
    assert names(world.tick()) == {a: []}


def test_addresses_and_incarnations_are_those_registered() -> None:
    world = World()
    a = world.peer("a")
    world.peer("b", incarnation=9)
    (peers,) = [one.message for one in world.tick() if getattr(one, "link", None) == a]
    assert peers == wire.Peers([wire.Peer("b", 9, "b:7503")])


def test_a_worker_of_version_1_is_not_told_and_is_nobodys_peer() -> None:
    world = World()
    a = world.peer("a")
    old = world.peer("old", change(1), protocol_max=1)
    assert names(world.tick()) == {}
    assert spans(asked(world, a, 1)) == []
    before = world.counters.get("blockyard_leader_frames_refused_total", reason="unexpected")
    assert sent(world.say(old, wire.Locate(1, [key(1)])), wire.Located) == []
    assert world.counters.get("blockyard_leader_frames_refused_total", reason="unexpected") == before + 1


def test_a_worker_that_serves_no_peers_still_hears_of_them() -> None:
    world = World()
    world.peer("a", change(1))
    b = world.worker("b", change(2))
    assert names(world.tick()) == {b: ["a"]}
    assert spans(asked(world, b, 1)) == [(0, 1, "a", HOST)]


def test_many_links_are_told_over_several_ticks() -> None:
    world = World()
    count = neighbours.TOLD_AT_ONCE + 5
    for number in range(count):
        world.peer(f"n{number}")
    assert [len(names(world.tick())) for _ in range(3)] == [neighbours.TOLD_AT_ONCE, 5, 0]


def test_keys_of_one_holder_are_one_span() -> None:
    world = World()
    world.peer("a", *map(change, range(8)))
    b = world.peer("b")
    located = asked(world, b, *range(8))
    assert located.whole
    assert spans(located) == [(0, 8, "a", HOST)]


def test_the_asker_is_not_told_of_itself_and_its_own_keys_are_no_gap() -> None:
    world = World()
    world.peer("a", change(1), change(3))
    b = world.peer("b", change(2, DISK))
    assert spans(asked(world, b, 1, 2, 3, 4)) == [(0, 1, "a", HOST), (2, 1, "a", HOST)]


def test_nothing_is_said_behind_a_gap_of_a_prefix() -> None:
    world = World()
    world.peer("a", change(1), change(3))
    b = world.peer("b")
    assert spans(asked(world, b, 1, 2, 3)) == [(0, 1, "a", HOST)]
    assert spans(asked(world, b, 1, 2, 3, prefix=False)) == [(0, 1, "a", HOST), (2, 1, "a", HOST)]


def test_host_comes_before_disk_and_gpu_memory_cannot_be_asked_for() -> None:
    world = World()
    world.peer("a", change(1, DISK))
    world.peer("c", change(1, GPU))
    world.peer("d", change(1, HOST | DISK))
    b = world.peer("b")
    assert spans(asked(world, b, 1)) == [(0, 1, "d", HOST | DISK), (0, 1, "a", DISK)]


def test_three_holders_at_most_and_those_that_go_on_are_kept() -> None:
    world = World()
    for number in range(9):
        world.peer(f"n{number}", *map(change, range(4 if number < 6 else 2)))
    asker = world.peer("z")
    found = spans(asked(world, asker, *range(4)))
    for place in range(4):
        assert sum(first <= place < first + count for first, count, _, _ in found) == wire.MAX_HOLDERS
    assert len(found) <= 2 * wire.MAX_HOLDERS


def test_askers_of_one_prompt_are_sent_to_different_peers() -> None:
    world = World()
    for number in range(12):
        world.peer(f"n{number}", change(1))
    askers = [world.peer(f"z{number}") for number in range(12)]
    assert len({spans(asked(world, link, 1))[0][2] for link in askers}) > 6


def test_a_lost_holder_is_not_named_and_a_partial_answer_says_so() -> None:
    world = World()
    a = world.peer("a", change(1))
    b = world.peer("b")
    world.put(events.LinkClosed(a))
    assert spans(asked(world, b, 1)) == []
    world.register("c")
    world.open(hello("c"))
    assert not asked(world, b, 1).whole


def test_kinds_do_not_disturb_who_holds_what() -> None:
    world = World()
    other = wire.World(1, b"g" * 32, "b-model", [(0, 256)])
    a = world.peer("a", change(1))
    world.say(a, delta(1, change(1, HOST, 1), change(2, DISK, 1), worlds=(other,)))
    assert world.holders(1) == {"a": HOST}
    assert world.holders(2) == {"a": DISK}
    world.say(a, delta(2, change(1, 0), worlds=()))
    assert world.holders(1) == {}
