"""The leader's core: orders are given, sent again, reported and expire; purges and prefetches come to orders."""

import pytest

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events, orders, purges
from blockyard.leader.core.requests import Accepted, Denied, DrainAsked, Prefetch, PurgeAsked, UndrainAsked
from support.leader_world import DISK, HOST, WORLD, World, change, delta, hello, key, sent, snapshot

FINGERPRINT = WORLD.fingerprint


def counts(answer: object) -> dict[str, int]:
    assert isinstance(answer, Accepted), answer
    return dict(answer.counts)


def states(world: World) -> list[str]:
    return [job.state for job in world.core.direction.orders]


def reported(world: World, link: int, job: int, outcome: wire.Outcome = "done", **said: object) -> None:
    world.say(link, wire.OrderReport(job, outcome, **said))


def test_a_prefetch_promotes_copies_and_says_what_cannot_be_had() -> None:
    world = World()
    a = world.peer("a", change(1), change(2, DISK))
    world.peer("b", change(3), change(4, DISK))
    answer, done = world.ask(Prefetch("a", tuple(map(key, (1, 2, 3, 4, 5, 5))), 9.0))
    assert counts(answer) == {"ready": 1, "promote": 1, "copy": 2, "missing": 1}
    assert {one.link for one in done} == {a}
    promote, copy = sent(done, wire.Order)
    assert (promote.kind, promote.keys, promote.deadline_ms) == ("promote", [key(2)], 9000)
    assert (copy.kind, copy.keys, copy.node) == ("copy", [key(3), key(4)], "b")
    assert (copy.fingerprint, copy.group) == (FINGERPRINT, 0)
    assert len({promote.job, copy.job}) == 2


@pytest.mark.parametrize("request_", [Prefetch("x", (key(1),), 1.0), DrainAsked("x"), UndrainAsked("x")])
def test_a_worker_that_is_not_registered_is_unknown(request_: Prefetch | DrainAsked | UndrainAsked) -> None:
    answer, done = World().ask(request_)
    assert isinstance(answer, Denied)
    assert (answer.code, done) == ("unknown", [])
    assert "'x'" in answer.detail


def test_a_worker_without_a_link_or_without_orders_is_a_conflict() -> None:
    world = World()
    world.register("a")
    world.peer("old", protocol_max=1)
    for node in ("a", "old"):
        answer, done = world.ask(DrainAsked(node))
        assert isinstance(answer, Denied)
        assert (answer.code, done) == ("conflict", [])


def test_a_report_ends_a_job_and_progress_does_not() -> None:
    world = World()
    a = world.peer("a", change(1, DISK))
    _, done = world.ask(Prefetch("a", (key(1),), 9.0))
    (order,) = sent(done, wire.Order)
    reported(world, a, order.job, "progress", count=0, left=1)
    assert states(world) == ["sent"]
    reported(world, a, order.job, "refused", left=1, reason="no-room")
    (job,) = world.core.direction.orders
    assert (job.state, job.reason, job.left) == ("refused", "no-room", 1)
    reported(world, a, order.job, "done", count=1)
    assert states(world) == ["refused"]


def test_a_report_from_another_link_counts_for_nothing() -> None:
    world = World()
    world.peer("a", change(1, DISK))
    b = world.peer("b")
    _, done = world.ask(Prefetch("a", (key(1),), 9.0))
    reported(world, b, sent(done, wire.Order)[0].job)
    assert states(world) == ["sent"]


def test_an_order_is_sent_again_on_the_next_link_with_what_is_left_of_its_time() -> None:
    world = World()
    a = world.peer("a", change(1, DISK))
    _, done = world.ask(Prefetch("a", (key(1),), 9.0))
    (first,) = sent(done, wire.Order)
    world.put(events.LinkClosed(a))
    assert states(world) == ["waiting"]
    world.now += 2.0
    again, _ = world.open(hello("a"))
    (second,) = sent(world.tick(0.0), wire.Order)
    assert (second.job, second.keys, second.deadline_ms) == (first.job, first.keys, 7000)
    assert sent(world.tick(), wire.Order) == []
    reported(world, a, first.job)
    assert states(world) == ["sent"]
    reported(world, again, first.job)
    assert states(world) == ["done"]


def test_a_job_expires_and_one_that_was_sent_gets_a_moment_more() -> None:
    world = World()
    a = world.peer("a", change(1, DISK))
    world.ask(Prefetch("a", (key(1),), 9.0))
    world.tick(9.0)
    assert states(world) == ["sent"]
    world.tick(orders.LATE_S)
    assert [(job.state, job.reason) for job in world.core.direction.orders] == [("expired", "no-report")]
    world.ask(Prefetch("a", (key(1),), 9.0))
    world.put(events.LinkClosed(a))
    world.tick(9.0)
    assert [job.reason for job in world.core.direction.orders] == ["no-report", "no-link"]


def test_with_its_term_a_leader_loses_its_orders_and_no_number_comes_again() -> None:
    world = World()
    world.peer("a", change(1, DISK))
    _, done = world.ask(Prefetch("a", (key(1),), 9.0))
    world.put(events.LostLeadership())
    assert [(job.state, job.reason) for job in world.core.direction.orders] == [("expired", "leadership-lost")]
    assert sent(world.tick(), wire.Order) == []
    world.lead(8)
    world.put(events.WorkersListed((events.WorkerRegistered("a", 5, events.WorkerInfo(peer="a:1")),)))
    link, opened = world.open(hello("a", next_seq=1))
    world.say(link, *snapshot(0, change(1, DISK)))
    assert sent(opened + world.tick(), wire.Order) == []
    _, later = world.ask(Prefetch("a", (key(1),), 9.0))
    assert sent(later, wire.Order)[0].job > sent(done, wire.Order)[0].job


def test_so_many_at_a_time_at_one_worker_and_so_many_in_all() -> None:
    world = World()
    a = world.peer("a", change(1, DISK))
    for _ in range(orders.MAX_OPEN):
        answer, _ = world.ask(Prefetch("a", (key(1),), 900.0))
        counts(answer)
        if len(list(world.core.direction.orders)) == orders.MAX_OPEN:
            break
    assert states(world).count("sent") == orders.MAX_SENT
    answer, _ = world.ask(Prefetch("a", (key(1),), 900.0))
    assert isinstance(answer, Denied)
    assert answer.code == "busy"
    reported(world, a, 1)
    assert [order.job for order in sent(world.tick(), wire.Order)] == [orders.MAX_SENT + 1]


def test_purged_keys_are_not_listed_until_each_worker_is_done_and_a_moment_more() -> None:
    world = World()
    a, b = world.peer("a", change(1), change(2)), world.peer("b", change(1))
    answer, done = world.ask(PurgeAsked(keys=(key(1),)))
    assert counts(answer) == {"fingerprints": 0, "keys": 1, "workers": 2}
    jobs = {one.link: one.message.job for one in done if isinstance(one.message, wire.Order)}  # type: ignore[union-attr]
    assert jobs.keys() == {a, b}
    assert world.holders(1) == {}
    assert world.holders(2) == {"a": HOST}
    assert world.core.match([key(1)]) == []
    reported(world, a, jobs[a], count=1)
    world.say(a, delta(1, change(1), worlds=()))
    world.tick()
    assert world.holders(1) == {}
    world.tick(purges.LATE_CLAIMS_S)
    assert world.holders(1) == {"a": HOST}
    reported(world, b, jobs[b], count=1)
    world.say(b, delta(1, change(1, 0), worlds=()))
    world.tick()
    world.tick(purges.LATE_CLAIMS_S)
    assert world.holders(1) == {"a": HOST}


def test_a_worker_that_comes_during_a_purge_is_told_of_it() -> None:
    world = World()
    world.peer("a")
    world.ask(PurgeAsked(keys=(key(1),)))
    b = world.peer("b", change(1))
    assert world.holders(1) == {}
    assert [one.link for one in world.tick() if isinstance(getattr(one, "message", None), wire.Order)] == [b]


def test_a_purge_by_model_is_of_its_fingerprints_alone() -> None:
    world = World()
    other = wire.World(1, b"g" * 32, "b-model", [(0, 256)])
    a = world.peer("a", change(1))
    world.say(a, delta(1, change(2, HOST, 1), worlds=(other,)))
    answer, done = world.ask(PurgeAsked(model="b-model"))
    assert counts(answer)["fingerprints"] == 1
    assert [order.fingerprint for order in sent(done, wire.Order)] == [other.fingerprint]
    assert world.holders(1) == {"a": HOST}
    assert world.holders(2) == {}
    unknown, _ = world.ask(PurgeAsked(model="c-model"))
    assert isinstance(unknown, Denied)
    assert "a-model, b-model" in unknown.detail


def test_a_purge_ends_with_its_deadline_whoever_was_away() -> None:
    world = World()
    a = world.peer("a", change(1))
    world.put(events.LinkClosed(a))
    world.ask(PurgeAsked(keys=(key(1),), seconds=20.0))
    world.tick(10.0)
    assert world.holders(1) == {}
    world.tick(10.0)
    assert world.holders(1) == {"a": HOST}
    assert states(world) == ["expired"]


def test_purges_are_bounded() -> None:
    world = World()
    world.peer("a")
    answer, _ = world.ask(PurgeAsked(keys=tuple(map(key, range(purges.MAX_KEYS + 1)))))
    assert isinstance(answer, Denied)
    assert answer.code == "busy"


def test_purged_chunks_are_not_named_to_peers() -> None:
    world = World()
    world.peer("a", change(1), change(2))
    b = world.peer("b")
    world.ask(PurgeAsked(keys=(key(2),)))
    (located,) = sent(world.say(b, wire.Locate(1, [key(1), key(2)])), wire.Located)
    assert [(span.first, span.count) for span in located.spans] == [(0, 1)]
