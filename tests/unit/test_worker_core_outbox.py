"""What the leader is told: numbered, coalesced, bounded, and whole again after any gap."""

from blockyard.common.fencing import Epoch
from blockyard.common.messages import cluster
from blockyard.worker.core import events, instructions
from support.worker_core import Engine, Node, keys
from support.worker_core_leader import UID, Leader


def linked(**settings: float) -> tuple[Node, Engine, Leader]:
    node = Node(**settings)
    engine = node.engine()
    node.do(events.Incarnated(7))
    leader = Leader(node)
    leader.link()
    return node, engine, leader


def held(node: Node) -> set[bytes]:
    return {key for key, *_ in node.core.holdings.shared()}


def test_a_new_link_begins_with_a_snapshot_and_goes_on_with_deltas() -> None:
    node = Node()
    engine = node.engine()
    engine.store(keys(1))
    node.check()
    node.do(events.Incarnated(7))
    leader = Leader(node)
    kinds = [type(one) for one in leader.link()]
    assert kinds == [cluster.SnapshotOffer, cluster.SnapshotBegin, cluster.SnapshotPart, cluster.SnapshotEnd]
    engine.store(keys(2))
    node.check()
    leader.tick()
    assert leader.held == set(keys(1, 2))
    assert leader.worlds == {0: b"f" * 32}


def test_nothing_is_told_before_its_checksum_stands() -> None:
    node, engine, leader = linked()
    engine.store(keys(1))
    leader.tick()
    assert leader.held == set()
    node.check()
    leader.tick()
    assert leader.held == set(keys(1))


def test_changes_wait_for_the_delta_interval() -> None:
    node, engine, leader = linked(delta_interval=2.0)
    leader.ack()
    engine.store(keys(1))
    node.check()
    leader.tick()
    engine.store(keys(2))
    node.check()
    assert node.core.next_deadline() == node.now + 1.9
    leader.take(node.wait(1.8))
    assert leader.held == set()
    (delta,) = [one for one in leader.take(node.wait(0.2)) if isinstance(one, cluster.Delta)]
    assert leader.held == set(keys(1, 2))
    assert len(delta.changes) == 2


def test_a_snapshot_does_not_wait_for_the_delta_interval() -> None:
    node, engine, leader = linked(delta_interval=60.0)
    engine.store(keys(1))
    node.check()
    node.do(events.ResyncAsked(0))
    leader.tick()
    assert leader.held == set(keys(1))


def test_an_eviction_is_told() -> None:
    node, engine, leader = linked(slots=4)
    engine.store(keys(1, 2, 3, 4))
    node.check()
    leader.tick()
    engine.store(keys(5))
    node.check()
    leader.tick()
    assert leader.held == held(node)
    assert len(leader.held) == 4


def test_changes_of_one_key_are_told_once() -> None:
    node, engine, leader = linked()
    for _ in range(3):
        engine.store(keys(1))
        node.check()
        node.core.holdings.evict(node.core.holdings.index[keys(1)[0]], "room")
    (delta,) = [one for one in leader.tick() if isinstance(one, cluster.Delta)]
    assert [change.tiers for change in delta.changes] == [0]


def test_a_leader_that_missed_deltas_gets_them_again() -> None:
    node, engine, leader = linked()
    engine.store(keys(1))
    node.check()
    node.wait(0.1)
    node.do(events.LinkDown())
    engine.store(keys(2))
    node.check()
    leader.link()
    assert leader.held == set(keys(1, 2))
    assert leader.snapshots == 1


def test_what_was_acknowledged_is_not_kept_and_a_leader_that_lost_it_gets_a_snapshot() -> None:
    node, engine, leader = linked()
    engine.store(keys(1))
    node.check()
    leader.tick()
    leader.ack()
    assert node.core.outbox.settled
    leader.expect -= 1
    node.do(events.LinkDown())
    leader.link()
    assert leader.snapshots == 2
    assert leader.held == set(keys(1))


def test_a_resync_is_answered_from_the_seq_asked_for() -> None:
    node, engine, leader = linked()
    engine.store(keys(1))
    node.check()
    node.wait(0.1)
    leader.take(node.do(events.ResyncAsked(leader.expect)))
    assert leader.held == set(keys(1))
    node.do(events.ResyncAsked(0))
    leader.tick()
    assert leader.snapshots == 2


def test_a_snapshot_that_is_lost_with_its_link_is_missed() -> None:
    """Changes that were too many to keep are in the snapshot alone: the leader must not count as told without it."""
    node, engine, leader = linked(outbox_changes=1)
    leader.ack()
    engine.store(keys(1, 2, 3))
    node.check()
    node.wait(0.1)
    node.do(events.LinkDown())
    leader.link()
    leader.tick()
    assert leader.held == set(keys(1, 2, 3))


def test_a_new_incarnation_starts_over() -> None:
    node, engine, leader = linked()
    engine.store(keys(1))
    node.check()
    leader.tick()
    node.do(events.Incarnated(9))
    assert node.core.next_seq == 1
    assert node.wait(0.1) == []
    fresh = Leader(node)
    fresh.link()
    assert (fresh.held, fresh.expect) == (set(keys(1)), node.core.next_seq)


def test_a_full_outbox_becomes_a_snapshot() -> None:
    node, engine, leader = linked(outbox_changes=3)
    node.do(events.LinkDown())
    engine.store(keys(1, 2, 3, 4, 5))
    node.check()
    assert node.count("outbox_dropped_total") == 4
    leader.link()
    assert leader.snapshots == 2
    assert leader.held == held(node)


def test_a_leader_that_does_not_acknowledge_is_sent_only_so_much() -> None:
    node, engine, leader = linked(outbox_deltas=2, slots=16)
    first = leader.expect
    for number in range(5):
        engine.store(keys(number))
        node.check()
        leader.tick()
    assert leader.expect == first + 2
    leader.ack()
    leader.tick()
    assert leader.held == held(node)


def test_a_worker_with_nothing_sends_its_snapshot_at_once() -> None:
    node = Node()
    node.do(events.Incarnated(7))
    kinds = [type(one) for one in Leader(node, window=0).link()]
    assert kinds == [cluster.SnapshotBegin, cluster.SnapshotEnd]


def stored(*numbers: int, window: int, **settings: float) -> tuple[Node, Engine, Leader]:
    """A node with these keys, in parts of one key, whose leader gives credit for `window` parts at first."""
    node = Node(slots=16, snapshot_part_keys=1, **settings)
    engine = node.engine()
    engine.store(keys(*numbers))
    node.check()
    node.do(events.Incarnated(7))
    return node, engine, Leader(node, window)


def test_a_snapshot_waits_for_credit_and_is_offered_once() -> None:
    node, _, leader = stored(1, 2, window=0)
    (offer,) = leader.link()
    assert offer == cluster.SnapshotOffer(0, 2)
    assert not [one for one in leader.tick() if isinstance(one, cluster.SnapshotOffer)]
    leader.credit(offer.seq, 2)
    assert leader.held == held(node)


def test_no_more_parts_are_sent_than_there_is_credit_for() -> None:
    node, _, leader = stored(1, 2, 3, 4, 5, window=2)
    kinds = [type(one) for one in leader.link()]
    assert kinds.count(cluster.SnapshotPart) == 2
    for _ in range(5):
        assert not [one for one in leader.tick() if isinstance(one, cluster.SnapshotPart)]
    assert [type(one) for one in leader.credit(0, 4)] == [cluster.SnapshotPart] * 2
    assert [type(one) for one in leader.credit(0, 8)] == [cluster.SnapshotPart, cluster.SnapshotEnd]
    assert leader.held == held(node)


def test_one_step_sends_only_so_many_parts_whatever_the_credit() -> None:
    node, _, leader = stored(1, 2, 3, 4, 5, window=100, snapshot_parts_per_tick=2)
    assert [type(one) for one in leader.link()].count(cluster.SnapshotPart) == 2
    leader.tick()
    assert leader.snapshots == 0
    leader.tick()
    assert leader.held == held(node)


def test_credit_of_an_earlier_snapshot_is_void() -> None:
    node, engine, leader = stored(1, 2, 3, window=1, outbox_changes=1)
    leader.link()
    leader.window = 0
    engine.store(keys(4, 5))
    node.check()
    assert [type(one) for one in leader.tick() if not isinstance(one, cluster.WorkerStats)] == [cluster.SnapshotOffer]
    assert leader.credit(0, 100) == []
    leader.credit(1, 100)
    assert leader.held == held(node)


def test_what_changes_during_a_snapshot_follows() -> None:
    """A key that goes, one that comes, and one of a world that came up since the begin."""
    node, engine, leader = stored(1, 2, 3, window=1)
    leader.link()
    engine.store(keys(4))
    other = node.engine("b", fingerprint=b"g" * 32)
    other.store(keys(5))
    node.check()
    node.core.holdings.evict(node.core.holdings.index[keys(1)[0]], "room")
    leader.credit(0, 100)
    leader.tick()
    assert leader.held == set(keys(2, 3, 4, 5)) == held(node)
    assert set(leader.worlds.values()) == {b"f" * 32, b"g" * 32}


def test_a_link_lost_in_mid_snapshot_begins_again() -> None:
    node, engine, leader = linked(snapshot_parts_per_tick=1)
    engine.store(keys(1))
    node.check()
    for _ in range(4):
        leader.tick()
    leader.held.clear()  # it lost them, and asks for all
    node.do(events.ResyncAsked(0))
    leader.tick()
    node.do(events.LinkDown())
    leader.link()
    for _ in range(3):
        leader.tick()
    assert leader.held == set(keys(1))


def test_an_older_epoch_is_not_spoken_to() -> None:
    node, _, _ = linked()
    node.do(events.LinkUp(Epoch(UID, 9), 1))
    node.do(events.LinkDown())
    assert node.do(events.LinkUp(Epoch(UID, 8), 0)) == []
    assert node.wait(0.1) == []


def test_without_a_leader_everything_works() -> None:
    node = Node()
    engine = node.engine()
    engine.store(keys(1))
    node.check()
    assert node.wait(0.1) == []


def test_sizes_are_told_about_once_a_second() -> None:
    node, engine, leader = linked()
    engine.store(keys(1))
    node.check()
    engine.acquire(keys(1))
    told = [one for _ in range(21) for one in leader.tick() if isinstance(one, cluster.WorkerStats)]
    assert 2 <= len(told) <= 3
    assert (told[-1].ready_slots, told[-1].pinned_slots) == (1, 1)
    assert told[-1].engines == [("a", "tiny", "attached")]


def test_a_very_long_model_name_is_cut_for_the_leader() -> None:
    node = Node()
    node.engine(model="m" * 4096)
    node.do(events.Incarnated(7))
    (begin, *_) = Leader(node).link()
    assert isinstance(begin, cluster.SnapshotBegin)
    assert [len(world.model) for world in begin.worlds] == [cluster.MAX_SHORT]
    stats = [one for one in node.wait(1.0) if isinstance(one, instructions.Publish)][-1].messages[-1]
    assert isinstance(stats, cluster.WorkerStats)
    assert stats.engines == [("a", "m" * cluster.MAX_SHORT, "attached")]
