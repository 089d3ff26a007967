"""Orders of the leader: each is done once or refused, and told."""

from __future__ import annotations

from typing import Any

from blockyard.common.fencing import Epoch
from blockyard.common.messages import attach, cluster
from blockyard.common.slot_table import SlotState
from blockyard.worker.core import events, instructions
from blockyard.worker.core.disk import wire as disk_wire
from blockyard.worker.core.peers import wire
from support.disk_engine import HIT, asks, spilt, states
from support.peer_node import PeerNode
from support.worker_core import Engine, keys
from support.worker_core_leader import UID

A, B = keys(1, 2)
WORLD = b"f" * 32


def pair(**changes: Any) -> tuple[PeerNode, Engine]:
    node = PeerNode(**changes)
    return node, node.engine()


def reports(out: list[instructions.Instruction]) -> list[tuple[str, int, int, str]]:
    told = [m for one in out if isinstance(one, instructions.Publish) for m in one.messages]
    return [(m.outcome, m.count, m.left, m.reason) for m in told if isinstance(m, cluster.OrderReport)]


def order(node: PeerNode, kind: Any, wanted: list[bytes], job: int = 7, source: str = "", world: bytes = b"") -> Any:
    """Give an order, return the reports that follow at once."""
    one = cluster.Order(job, kind, 5000, wanted, source, world)
    return reports(node.do(wire.Ordered(one)))


def on_disk() -> tuple[PeerNode, Engine]:
    node, engine = pair(directories=1, slots=4)
    spilt(node, engine, keys(1))
    spilt(node, engine, keys(11, 12, 13, 14))
    return node, engine


def test_what_is_ordered_to_be_copied_is_fetched_and_told() -> None:
    node, engine = pair()
    assert order(node, "copy", keys(1, 2), source="n2", world=WORLD) == []
    assert node.fetching == {A: "n2", B: "n2"} and reports(node.read(A)) == []
    assert reports(node.read(B)) == [("done", 2, 0, "")]
    assert engine.sees(keys(1, 2)) == [HIT, HIT]


def test_a_copy_takes_free_slots_alone() -> None:
    node, engine = pair(slots=4)
    engine.store(keys(11, 12, 13))
    order(node, "copy", keys(1, 2), source="n2", world=WORLD)
    assert node.fetching == {A: "n2"}
    assert reports(node.read(A)) == [("done", 1, 1, "incomplete")]
    assert engine.sees(keys(11, 12, 13)) == [HIT, HIT, HIT]


def test_a_copy_that_fails_is_told_as_far_as_it_came() -> None:
    node, _ = pair()
    order(node, "copy", keys(1, 2), source="n2", world=WORLD)
    node.read(A)
    assert reports(node.fail(B, "not-here")) == [("done", 1, 1, "incomplete")]


def test_a_copy_of_a_world_that_nobody_has_here_is_refused() -> None:
    node, _ = pair()
    told = order(node, "copy", keys(1), source="n2", world=b"g" * 32)
    assert told == [("refused", 0, 1, "unknown-world")]


def test_a_copy_from_one_who_is_no_peer_comes_to_nothing() -> None:
    node, _ = pair()
    told = order(node, "copy", keys(1), source="n9", world=WORLD)
    assert told == [("done", 0, 1, "incomplete")]


def test_an_order_and_a_request_share_a_fetch() -> None:
    node, engine = pair()
    order(node, "copy", keys(1), source="n2", world=WORLD)
    asks(engine, keys(1))
    out = node.read(A)
    assert (states(out), reports(out)) == ([HIT], [("done", 1, 0, "")])


def test_what_lies_on_disk_is_promoted() -> None:
    node, engine = on_disk()
    assert order(node, "promote", keys(1)) == []
    (read,) = node.under_way(disk_wire.ReadExtent)
    assert reports(node.end(read.op)) == [("done", 1, 0, "")]
    assert engine.sees(keys(1)) == [HIT]


def test_what_is_there_or_nowhere_is_told_at_once() -> None:
    node, engine = pair()
    engine.store(keys(1))
    assert order(node, "promote", keys(1, 2)) == [("done", 1, 1, "incomplete")]


def test_an_order_that_takes_too_long_expires() -> None:
    node, _ = pair(limits={"fetch_wait": 60.0})
    order(node, "copy", keys(1, 2), source="n2", world=WORLD)
    node.read(A)
    assert reports(node.wait(5.0)) == [("expired", 1, 1, "deadline")]


def test_a_job_is_done_once_and_told_as_often_as_it_is_asked_for() -> None:
    node, engine = pair()
    engine.store(keys(1))
    assert order(node, "purge", keys(1)) == [("done", 1, 0, "")]
    engine.store(keys(1))
    assert order(node, "purge", keys(1)) == [("done", 1, 0, "")]
    assert engine.sees(keys(1)) == [HIT]


def test_a_job_that_is_under_way_is_not_begun_again() -> None:
    node, _ = pair()
    order(node, "copy", keys(1), source="n2", world=WORLD)
    assert order(node, "copy", keys(1), source="n2", world=WORLD) == []
    assert len(node.tries) == 1


def test_a_report_that_was_lost_with_its_link_is_told_on_the_next() -> None:
    node, _ = pair()
    order(node, "copy", keys(1), source="n2", world=WORLD)
    node.do(events.LinkDown())
    node.read(A)
    node.link()
    assert order(node, "copy", keys(1), source="n2", world=WORLD) == [("done", 1, 0, "")]


def test_the_same_number_in_another_term_is_another_job() -> None:
    node, engine = pair()
    engine.store(keys(1))
    order(node, "purge", keys(1))
    engine.store(keys(1))
    node.do(events.LinkUp(Epoch(UID, 2), 0))
    assert order(node, "purge", keys(1)) == [("done", 1, 0, "")]
    assert node.states() == {}


def test_an_order_counts_only_on_a_link_whose_epoch_is_admitted() -> None:
    node, engine = pair()
    engine.store(keys(1))
    node.do(events.LinkUp(Epoch(UID, 3), 0))
    node.do(events.LinkDown())
    assert order(node, "purge", keys(1), job=7) == []
    node.do(events.LinkUp(Epoch(UID, 2), 0))
    assert order(node, "purge", keys(1), job=8) == [] and order(node, "drain", [], job=9) == []
    assert engine.sees(keys(1)) == [HIT]
    engine.store(keys(2))
    assert node.count("fills_refused_total", reason="no-room") == 0
    node.do(events.LinkUp(Epoch(UID, 3), 0))
    assert order(node, "purge", keys(1), job=7) == [("done", 1, 0, "")]


def test_a_purge_drops_what_is_ready_filling_and_on_disk() -> None:
    node, engine = on_disk()
    engine.fill(keys(2))
    assert order(node, "purge", keys(1, 2, 11)) == [("done", 3, 0, "")]
    assert [extent.key for extent in node.dropped if extent.key in keys(1, 11)] == keys(1, 11)
    assert order(node, "promote", keys(1), job=8) == [("done", 0, 1, "incomplete")]


def test_a_purge_of_a_world_takes_all_of_it_and_spares_who_copies() -> None:
    node, engine = pair()
    engine.store(keys(1, 2))
    engine.loading(keys(1))
    assert order(node, "purge", [], world=WORLD) == [("done", 0, 0, "")]
    assert node.states() == {SlotState.DOOMED: 1}


def test_what_was_purged_does_not_come_back_with_what_is_found_later() -> None:
    node, engine = pair(directories=1, slots=4)
    engine.store(keys(1))
    shape = next(iter(node.core.worlds.classes())).shape
    node.core.disk.directories.all[0].recovered = False
    order(node, "purge", keys(2))
    node.found(keys(2, 3), shape)
    assert [extent.key for extent in node.dropped] == keys(2)
    assert set(node.core.worlds.classes()[0].on_disk) == set(keys(3))


def test_what_a_worker_cannot_do_it_refuses() -> None:
    node, engine = pair()
    engine.store(keys(1))
    assert order(node, "drop", keys(1)) == [("refused", 0, 1, "unsupported")]
    assert engine.sees(keys(1)) == [HIT]


def test_a_forgotten_fetch_ends_its_order() -> None:
    node, engine = pair()
    order(node, "copy", keys(1), source="n2", world=WORLD)
    out = engine.says(attach.Forget("other weights"))
    assert reports(out) == [("done", 0, 1, "incomplete")]


def test_a_drained_worker_takes_in_nothing_new_and_goes_on_serving() -> None:
    node, engine = pair()
    engine.store(keys(1))
    assert order(node, "drain", []) == [("done", 0, 1, "")]
    engine.store(keys(2))
    assert engine.sees(keys(1)) == [HIT] and node.count("fills_refused_total", reason="no-room") == 1
    assert order(node, "copy", keys(3), job=8, source="n2", world=WORLD) == [("refused", 0, 1, "draining")]


def test_a_drain_ends_by_order_or_with_its_term() -> None:
    node, engine = pair()
    order(node, "drain", [])
    assert order(node, "undrain", [], job=8) == [("done", 0, 0, "")]
    engine.store(keys(1))
    order(node, "drain", [], job=9)
    node.do(events.LinkUp(Epoch(UID, 2), 0))
    engine.store(keys(2))
    assert engine.sees(keys(1, 2))[0] is HIT and node.count("fills_refused_total", reason="no-room") == 0
