"""What a worker says of all it holds: when it tells its digests, and how it answers where they differ."""

import pytest

from blockyard.common.digests import differing
from blockyard.common.messages import cluster
from blockyard.worker.core import events
from blockyard.worker.core.ledger import Ledger
from support.worker_core import Engine, Node, keys
from support.worker_core_leader import Leader


def linked(**settings: float) -> tuple[Node, Engine, Leader]:
    node = Node(slots=16, digest_interval=2.0, **settings)
    engine = node.engine()
    node.do(events.Incarnated(7))
    leader = Leader(node)
    leader.link()
    return node, engine, leader


def told(leader: Leader, seconds: float) -> list[cluster.Digests]:
    """The digests of so many seconds."""
    return [one for _ in range(round(seconds * 10)) for one in leader.tick() if isinstance(one, cluster.Digests)]


def hold(node: Node, engine: Engine, *numbers: int) -> None:
    engine.store(keys(*numbers))
    node.check()


def test_digests_are_told_once_in_an_interval_and_only_of_something_new() -> None:
    node, engine, leader = linked()
    assert [one.seq for one in told(leader, 2.5)] == [0]
    assert told(leader, 10.0) == []
    hold(node, engine, 1)
    assert [one.seq for one in told(leader, 0.2)] == [1]
    hold(node, engine, 2)
    assert told(leader, 1.5) == []
    assert [one.seq for one in told(leader, 0.5)] == [2]


def test_digests_follow_all_that_they_are_of() -> None:
    node, engine, leader = linked(delta_interval=0.5)
    told(leader, 2.5)
    hold(node, engine, 1)
    (delta, digests) = [
        one for _ in range(20) for one in leader.tick() if isinstance(one, cluster.Delta | cluster.Digests)
    ]
    assert (type(delta), digests.seq) == (cluster.Delta, delta.seq)


def test_there_are_no_digests_while_something_is_owed() -> None:
    node, engine, leader = linked(outbox_deltas=1)
    hold(node, engine, 1)
    leader.tick()
    hold(node, engine, 2)
    assert told(leader, 5.0) == []
    leader.ack()
    assert [one.seq for one in told(leader, 0.2)] == [2]
    leader.window = 0
    node.do(events.ResyncAsked(0))
    assert told(leader, 5.0) == []


def test_a_new_link_is_told_them_anew() -> None:
    node, _, leader = linked()
    assert len(told(leader, 2.5)) == 1
    node.do(events.LinkDown())
    leader.link()
    assert len(told(leader, 2.5)) == 1


def test_digests_are_of_what_is_held() -> None:
    node, engine, leader = linked()
    hold(node, engine, 1, 2)
    (before,) = told(leader, 2.5)
    node.core.holdings.evict(node.core.holdings.index[keys(2)[0]], "room")
    (after,) = told(leader, 2.5)
    assert differing(before.words, after.words) == [0]
    hold(node, engine, 2)
    (again,) = told(leader, 2.5)
    assert again.words == before.words


def test_a_bucket_that_differs_is_said_again() -> None:
    node, engine, leader = linked()
    hold(node, engine, 1, 2)
    leader.tick()
    leader.held = set(keys(2, 9))
    leader.take(node.do(events.RepairAsked(bytes([0, 5]))))
    assert leader.held == set(keys(1, 2))
    assert node.count("outbox_repairs_total") == 2
    leader.ack()
    assert node.core.outbox.settled


def test_a_repair_that_was_lost_with_its_link_is_resent_as_deltas_are() -> None:
    node, engine, leader = linked()
    hold(node, engine, 1)
    leader.tick()
    leader.held = set()
    node.do(events.RepairAsked(bytes([0])))
    node.do(events.LinkDown())
    leader.link()
    assert leader.held == set(keys(1))
    assert leader.snapshots == 1


def test_changes_that_wait_are_told_after_a_repair_that_has_them_already() -> None:
    node, engine, leader = linked(delta_interval=60.0)
    leader.tick()
    hold(node, engine, 1)
    out = leader.take(node.do(events.RepairAsked(bytes([0]))))
    assert [type(one) for one in out] == [cluster.Replacement, cluster.Delta]
    assert leader.held == set(keys(1))


def test_a_repair_keeps_to_the_bounds_of_the_outbox() -> None:
    node, _, leader = linked(outbox_deltas=2)
    out = leader.take(node.do(events.RepairAsked(bytes(range(32)))))
    assert [one.bucket for one in out if isinstance(one, cluster.Replacement)] == [0, 1]
    leader.ack()
    assert [one.bucket for one in leader.tick() if isinstance(one, cluster.Replacement)] == [2, 3]


def test_a_repair_asked_for_while_a_snapshot_is_due_is_part_of_it() -> None:
    node, engine, leader = linked()
    hold(node, engine, 1)
    node.do(events.ResyncAsked(0))
    out = leader.take(node.do(events.RepairAsked(bytes([0]))))
    assert not any(isinstance(one, cluster.Replacement) for one in out)
    assert leader.held == set(keys(1))


@pytest.mark.parametrize("count", [0, 1, cluster.MAX_CHANGES, cluster.MAX_CHANGES + 1, 3 * cluster.MAX_CHANGES])
def test_pieces_of_a_bucket_are_the_whole_bucket(count: int) -> None:
    ledger = Ledger()
    wanted = {bytes([7, number % 251]) + number.to_bytes(30, "big") for number in range(count)}
    for key in wanted:
        ledger.enter(cluster.Change(key, cluster.TIER_HOST, 1, 0, 0))
    found: list[bytes] = []
    first = 0
    while first < 256:
        piece = ledger.slice(7, first)
        assert piece is not None
        last, changes = piece
        assert len(changes) <= cluster.MAX_CHANGES
        assert all(first <= change.key[1] <= last for change in changes)
        found += [change.key for change in changes]
        first = last + 1
    assert len(found) == count
    assert set(found) == wanted


def test_keys_that_no_message_has_room_for_make_no_piece() -> None:
    ledger = Ledger()
    for number in range(cluster.MAX_CHANGES + 1):
        ledger.enter(cluster.Change(bytes(28) + number.to_bytes(4, "big"), cluster.TIER_HOST, 1, 0, 0))
    assert ledger.slice(0, 0) is None
