"""The leader's core: who may link, and what becomes of the claims of whoever goes."""

import pytest

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events
from support.leader_world import OTHER_UID, UID, World, change, closed, delta, hello, sent, snapshot

FUTURE = wire.PROTOCOL_MAX + 1


def test_a_registered_worker_is_welcome_and_owes_a_snapshot() -> None:
    world = World()
    world.register()
    _, done = world.open(hello())
    assert sent(done, wire.LinkWelcome) == [wire.LinkWelcome(wire.PROTOCOL_MAX, "9.9.9", UID, 3, 0)]
    assert world.core.partial


@pytest.mark.parametrize(("low", "high", "spoken"), [(1, 1, 1), (1, 2, 2), (2, 2, 2), (2, FUTURE, wire.PROTOCOL_MAX)])
def test_a_link_speaks_the_highest_version_that_both_sides_do(low: int, high: int, spoken: int) -> None:
    world = World()
    world.register()
    _, done = world.open(hello(protocol_min=low, protocol_max=high))
    assert [welcome.protocol for welcome in sent(done, wire.LinkWelcome)] == [spoken]


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (hello(protocol_min=FUTURE, protocol_max=FUTURE), "version", ["9.9.9", "0.0.1", f"{FUTURE} to {FUTURE}"]),
        (hello(cluster="other"), "cluster", ["'other'", "'test'"]),
        (hello(cluster_uid=OTHER_UID), "uid", [UID.hex(), OTHER_UID.hex()]),
        (hello(incarnation=4), "incarnation", ["4", "5"]),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_both_sides_named(
    said: wire.WorkerHello, code: str, words: list[str]
) -> None:
    world = World()
    world.register()
    link, done = world.open(said)
    (refused,) = sent(done, wire.LinkRefused)
    assert refused.code == code
    assert all(word in refused.detail for word in words)
    assert closed(done) == {link: code}


def test_a_process_whose_number_went_to_another_one_is_refused() -> None:
    world = World()
    world.register(boot_id=b"y" * 16)
    _, done = world.open(hello(boot_id=b"x" * 16))
    assert [refused.code for refused in sent(done, wire.LinkRefused)] == ["incarnation"]
    assert world.core.awaits_list
    _, done = world.open(hello(boot_id=b"y" * 16))
    assert sent(done, wire.LinkWelcome)


def test_a_number_that_comes_again_is_another_member() -> None:
    world = World()
    world.register(boot_id=b"x" * 16)
    link, _ = world.open(hello(boot_id=b"x" * 16))
    world.say(link, *snapshot(0, change(1)))
    done = world.register(boot_id=b"y" * 16)
    assert closed(done) == {link: "unregistered"}
    assert world.holders(1) == {}


def test_a_worker_that_knows_no_uid_yet_is_welcome() -> None:
    world = World()
    world.register()
    _, done = world.open(hello(cluster_uid=b""))
    assert sent(done, wire.LinkWelcome)


def test_a_standby_refuses_links() -> None:
    world = World(leads=False)
    world.register()
    _, done = world.open(hello())
    assert [refused.code for refused in sent(done, wire.LinkRefused)] == ["not-leader"]


def test_a_hello_that_overtakes_the_registration_waits_for_it() -> None:
    world = World()
    link, done = world.open(hello())
    assert done == []
    assert sent(world.register(), wire.LinkWelcome)
    world.say(link, *snapshot(0, change(1)))
    assert world.holders(1) == {"n1": 1}


def test_a_hello_whose_registration_never_shows_is_refused_in_the_end() -> None:
    world = World(registration_wait=5.0)
    link, _ = world.open(hello())
    assert world.tick(4.9) == []
    done = world.tick(0.2)
    assert [refused.code for refused in sent(done, wire.LinkRefused)] == ["unregistered"]
    assert closed(done) == {link: "unregistered"}


def test_a_waiting_hello_that_a_newer_registration_overtakes_is_refused() -> None:
    world = World()
    world.open(hello(incarnation=5))
    assert [refused.code for refused in sent(world.register(incarnation=6), wire.LinkRefused)] == ["incarnation"]


def test_links_are_bounded() -> None:
    world = World(max_workers=2)
    for node in ("n1", "n2", "n3"):
        world.register(node)
        _, done = world.open(hello(node))
    assert [refused.code for refused in sent(done, wire.LinkRefused)] == ["busy"]


def test_a_new_incarnation_ends_the_link_and_the_claims_of_the_old() -> None:
    world = World()
    old = world.worker("n1", change(1))
    assert closed(world.register(incarnation=9)) == {old: "unregistered"}
    assert world.holders(1) == {}
    assert world.say(old, delta(1, change(2))) == []
    assert world.holders(2) == {}


def test_a_second_link_of_one_incarnation_replaces_the_first_and_goes_on_where_it_stood() -> None:
    world = World()
    first = world.worker("n1", change(1))
    world.say(first, delta(1, change(2)))
    _, done = world.open(hello(next_seq=2))
    assert closed(done) == {first: "replaced"}
    assert [welcome.expect_seq for welcome in sent(done, wire.LinkWelcome)] == [2]
    world.put(events.LinkClosed(first))
    assert world.core.workers()[0].state == "live"


def test_claims_of_a_lost_link_are_stale_until_the_grace_is_over() -> None:
    world = World(claim_grace=60.0)
    link = world.worker("n1", change(1))
    world.put(events.LinkClosed(link))
    world.tick(59.0)
    assert [holding.stale for holding in world.core.where(change(1).key)] == [True]
    assert not world.core.partial
    assert [item.what for item in world.core.degraded()] == ["worker-lost"]
    world.tick(2.0)
    assert world.holders(1) == {}
    assert world.core.partial


def test_unregistration_takes_the_claims_and_a_late_one_of_an_old_incarnation_nothing() -> None:
    world = World()
    link = world.worker("n1", change(1), incarnation=9)
    assert world.unregister(incarnation=8) == []
    assert world.holders(1) == {"n1": 1}
    assert closed(world.unregister(incarnation=9)) == {link: "unregistered"}
    assert world.holders(1) == {}
    assert world.core.workers() == []


def test_a_fresh_list_of_workers_replaces_what_was_known() -> None:
    world = World()
    world.worker("n1", change(1))
    gone = world.worker("n2", change(1))
    done = world.put(events.WorkersListed((events.WorkerRegistered("n1", 5),)))
    assert closed(done) == {gone: "unregistered"}
    assert world.holders(1) == {"n1": 1}


def test_before_the_first_list_of_workers_answers_are_partial() -> None:
    world = World(leads=False)
    world.lead()
    assert world.core.partial
    world.put(events.WorkersListed(()))
    assert not world.core.partial


def test_leadership_lost_and_won_again_goes_on_without_a_snapshot() -> None:
    world = World()
    link = world.worker("n1", change(1))
    world.say(link, delta(1, change(2)))
    assert closed(world.put(events.LostLeadership())) == {link: "not-leader"}
    world.lead(number=8)
    _, done = world.open(hello(next_seq=2))
    assert [(welcome.epoch, welcome.expect_seq) for welcome in sent(done, wire.LinkWelcome)] == [(8, 2)]
    world.put(events.WorkersListed((events.WorkerRegistered("n1", 5),)))
    assert not world.core.partial


def test_in_a_new_term_old_claims_are_not_whole_until_the_worker_has_been_heard() -> None:
    """Meanwhile another leader may have led, and the worker's chunks have changed."""
    world = World()
    world.worker("n1", change(1))
    world.put(events.LostLeadership())
    world.lead(number=8)
    world.put(events.WorkersListed((events.WorkerRegistered("n1", 5),)))
    assert world.holders(1) == {"n1": 1}
    assert world.core.partial
    world.open(hello(next_seq=1))
    assert not world.core.partial


def test_each_new_term_awaits_the_list_of_workers_anew() -> None:
    """A standby's watch misses that etcd was wiped if the new revisions have caught up with the old ones."""
    world = World(leads=False)
    world.put(events.WorkersListed((events.WorkerRegistered("n1", 5), events.WorkerRegistered("n2", 2))))
    world.lead(number=10)
    assert world.core.awaits_list and world.core.partial
    world.put(events.WorkersListed((events.WorkerRegistered("n1", 2), events.WorkerRegistered("n2", 5))))
    assert not world.core.awaits_list
    assert [(view.node, view.incarnation) for view in world.core.workers()] == [("n1", 2), ("n2", 5)]


def test_a_worker_whose_registration_does_not_show_has_the_list_read_again() -> None:
    """A watch can miss it: in an etcd restored from a backup whose revisions caught up with those already seen."""
    world = World()
    world.register("n1", 2)
    link, _ = world.open(hello(incarnation=8))
    assert not world.core.awaits_list
    assert closed(world.tick(world.core.settings.registration_wait)) == {link: "unregistered"}
    assert world.core.awaits_list
    world.put(events.WorkersListed((events.WorkerRegistered("n1", 8),)))
    assert not world.core.awaits_list
    _, done = world.open(hello(incarnation=8))
    assert sent(done, wire.LinkWelcome)


def test_a_term_that_goes_on_needs_no_new_list() -> None:
    world = World()
    world.put(events.LostLeadership())
    world.lead()
    assert not world.core.awaits_list


@pytest.mark.parametrize(("number", "uid"), [(3, OTHER_UID), (2, UID)])
def test_etcd_wiped_or_restored_means_that_no_claim_stands(number: int, uid: bytes) -> None:
    world = World()
    world.worker("n1", change(1))
    world.put(events.LostLeadership())
    world.lead(number, uid)
    assert world.holders(1) == {}
    assert world.core.partial
    # The new store numbers from the start: a lower incarnation is the newer one.
    world.put(events.WorkersListed((events.WorkerRegistered("n1", 2),)))
    _, done = world.open(hello(incarnation=2, cluster_uid=uid))
    assert [welcome.expect_seq for welcome in sent(done, wire.LinkWelcome)] == [0]


def test_ping_is_answered_and_stats_are_shown() -> None:
    world = World()
    link = world.worker()
    assert sent(world.say(link, wire.Ping(7)), wire.Pong) == [wire.Pong(7)]
    world.say(link, wire.WorkerStats(1000, 400, 3, 1, 0, [("e1", "a-model", "live")]))
    (view,) = world.core.workers()
    assert (view.pool_bytes, view.used_bytes, view.engines[0].engine) == (1000, 400, "e1")


def test_a_second_hello_is_counted_and_changes_nothing() -> None:
    world = World()
    link = world.worker("n1", change(1))
    assert world.say(link, hello()) == []
    assert world.counters.get("blockyard_leader_frames_refused_total", reason="unexpected") == 1
    assert world.holders(1) == {"n1": 1}


def test_registrations_beyond_the_limit_are_ignored_and_told() -> None:
    world = World(max_workers=2)
    for number in range(5):
        world.register(f"n{number}")
    assert [view.node for view in world.core.workers()] == ["n0", "n1"]
    assert world.counters.get("blockyard_leader_registrations_ignored_total") == 3
    told = [item for item in world.core.degraded() if item.what == "workers-ignored"]
    assert [item.detail for item in told] == ["3 workers are registered beyond max_workers = 2"]
    assert world.core.partial
    (refused,) = sent(world.open(hello("n2"))[1], wire.LinkRefused)
    assert (refused.code, "max_workers = 2" in refused.detail) == ("busy", True)


def test_an_ignored_registration_comes_in_when_a_member_leaves() -> None:
    world = World(max_workers=2)
    for number in range(4):
        world.register(f"n{number}")
    world.unregister("n2")
    world.unregister("n0")
    assert [view.node for view in world.core.workers()] == ["n1", "n3"]
    assert not [item for item in world.core.degraded() if item.what == "workers-ignored"]
    assert sent(world.open(hello("n3"))[1], wire.LinkWelcome)


def test_a_member_that_registers_anew_keeps_its_place() -> None:
    world = World(max_workers=1)
    world.register("n0")
    world.register("n1")
    world.register("n0", incarnation=6)
    assert [(view.node, view.incarnation) for view in world.core.workers()] == [("n0", 6)]


def test_those_too_many_to_remember_come_in_with_the_next_list() -> None:
    world = World(max_workers=1)
    for number in range(4):
        world.register(f"n{number}")
    assert len(world.core.overflow) == 3
    world.put(events.WorkersListed((events.WorkerRegistered("n3", 5),)))
    assert [view.node for view in world.core.workers()] == ["n3"]
    assert not len(world.core.overflow)
