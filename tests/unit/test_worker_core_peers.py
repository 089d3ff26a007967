"""Chunks of peers: what is asked, fetched and served, and what a peer's trouble does."""

from __future__ import annotations

import pytest

from blockyard.common.messages import attach
from blockyard.common.messages.peer import FetchState
from blockyard.common.messages.states import KeyState
from blockyard.common.slot_table import PAGE, SlotState
from blockyard.worker.core import events, instructions
from blockyard.worker.core.disk import wire as disk_wire
from blockyard.worker.core.peers import wire
from support.disk_engine import HIT, asks, silent, spilt, states
from support.peer_node import PeerNode
from support.worker_core import Engine, keys, run

A, B, C = keys(1, 2, 3)
NEVER, GONE, UNKNOWN = KeyState.NEVER_STORED, KeyState.PEER_GONE, KeyState.LEADER_UNKNOWN


def pair(**changes: object) -> tuple[PeerNode, Engine]:
    node = PeerNode(**changes)  # type: ignore[arg-type]
    return node, node.engine()


def test_what_a_peer_holds_is_found_and_fetched() -> None:
    node, engine = pair()
    assert silent(asks(engine, keys(1, 2)))
    assert node.asked[-1].keys == keys(1, 2) and silent(node.answer((0, 2, "n2")))
    assert node.fetching == {A: "n2", B: "n2"} and silent(node.read(A))
    assert states(node.read(B)) == [HIT, HIT]
    assert node.count("hit_chunks_total", tier="peer") == 2


def test_what_is_fetched_is_a_hit_in_host_memory_from_then_on() -> None:
    node, engine = pair()
    asks(engine, keys(1))
    node.answer((0, 1, "n2"))
    node.read(A)
    assert states(asks(engine, keys(1))) == [HIT]
    assert node.count("hit_chunks_total", tier="host") == 1


def test_chunks_for_one_peer_travel_together_in_bounded_fetches() -> None:
    node, engine = pair(limits={"max_batch": 2})
    asks(engine, keys(1, 2, 3))
    out = node.answer((0, 3, "n2"))
    assert [len(one.items) for one in out if isinstance(one, wire.FetchChunks)] == [2, 1]


def test_only_what_follows_without_a_gap_is_fetched_of_a_prefix() -> None:
    node, engine = pair()
    asks(engine, keys(1, 2, 3))
    node.answer((0, 1, "n2"), (2, 1, "n2"))
    assert node.fetching == {A: "n2"}


def test_a_run_that_is_no_prefix_is_fetched_wherever_it_can_be() -> None:
    node, engine = pair()
    engine.says(attach.Acquire(1, "request", [run(keys(1, 2, 3), prefix=False)], 500))
    node.answer((0, 1, "n2"), (2, 1, "n3"))
    assert node.fetching == {A: "n2", C: "n3"}


def test_own_disk_comes_before_peers_and_fills_no_gap_of_theirs() -> None:
    node, engine = pair(directories=1, slots=4)
    spilt(node, engine, keys(1))
    spilt(node, engine, keys(11, 12, 13, 14))
    asks(engine, keys(1, 2))
    assert [one.extent.key for one in node.under_way(disk_wire.ReadExtent)] == keys(1)
    assert node.asked[-1].keys == keys(2)


def test_what_nobody_holds_is_answered_at_once_and_not_asked_again() -> None:
    node, engine = pair()
    asks(engine, keys(1, 2))
    assert states(node.answer()) == [NEVER, NEVER]
    assert states(asks(engine, keys(1, 2))) == [NEVER, NEVER]
    assert len(node.asked) == 1


def test_nobody_is_asked_while_there_are_no_peers() -> None:
    node, engine = pair(peers=())
    assert states(asks(engine, keys(1))) == [NEVER]
    assert not node.asked


def test_who_does_not_wait_asks_nobody() -> None:
    node, engine = pair()
    assert states(asks(engine, keys(1), wait_ms=0)) == [NEVER]
    assert not node.asked


def test_one_question_and_one_fetch_serve_all_who_wait() -> None:
    node, engine = pair()
    other = node.engine("b")
    asks(engine, keys(1))
    asks(other, keys(1))
    node.answer((0, 1, "n2"))
    assert (len(node.asked), len(node.tries)) == (1, 1)
    granted = [one.session for one in node.read(A) if isinstance(one, instructions.Send)]
    assert granted == [engine.scheduler, other.scheduler]


def test_a_leader_that_does_not_answer_costs_a_bounded_wait_and_says_so() -> None:
    node, engine = pair(limits={"locate_wait": 0.02})
    assert silent(asks(engine, keys(1)))
    assert states(node.wait(0.02)) == [UNKNOWN]
    assert node.count("peer_questions_unanswered_total") == 1


def test_without_a_leader_recent_answers_are_used() -> None:
    node, engine = pair()
    asks(engine, keys(1, 2))
    node.answer((0, 1, "n2"))
    node.fail(A, "busy")
    node.name("n2")
    asks(engine, keys(3))
    node.answer((0, 1, "n2"))
    node.do(events.LinkDown())
    node.fail(C, "gone")
    assert states(asks(engine, keys(5))) == [UNKNOWN]
    assert not node.tries


def test_a_link_that_ends_ends_the_wait_for_its_answers() -> None:
    node, engine = pair()
    asks(engine, keys(1))
    assert states(node.do(events.LinkDown())) == [UNKNOWN]


def test_a_late_answer_helps_the_next_one_who_asks() -> None:
    node, engine = pair(limits={"locate_wait": 0.02})
    asks(engine, keys(1))
    node.wait(0.02)
    node.answer((0, 1, "n2"))
    assert silent(asks(engine, keys(1)))
    assert (len(node.asked), node.fetching) == (1, {A: "n2"})


@pytest.mark.parametrize("reason", ["not-here", "busy", "gone", "shape", "corrupt"])
def test_when_one_holder_fails_the_next_is_tried(reason: wire.FetchFault) -> None:
    node, engine = pair()
    asks(engine, keys(1))
    node.answer((0, 1, "n2"), (0, 1, "n3"))
    assert silent(node.fail(A, reason))
    assert node.fetching == {A: "n3"} and states(node.read(A)) == [HIT]
    assert node.count("peer_tries_failed_total", reason=reason) == 1


def test_when_all_holders_fail_the_key_says_so_and_nothing_is_held() -> None:
    node, engine = pair()
    asks(engine, keys(1))
    node.answer((0, 1, "n2"), (0, 1, "n3"))
    node.fail(A, "not-here")
    assert states(node.fail(A, "gone")) == [GONE]
    assert node.states() == {} and engine.pins() == 0


def test_a_chunk_is_tried_only_so_often() -> None:
    node, engine = pair(limits={"max_tries": 2})
    asks(engine, keys(1))
    node.answer((0, 1, "n2"), (0, 1, "n3"), (0, 1, "n4"))
    node.fail(A, "busy")
    assert states(node.fail(A, "busy")) == [GONE]


def test_a_peer_that_lies_is_left_alone() -> None:
    node, engine = pair()
    asks(engine, keys(1))
    node.answer((0, 1, "n2"))
    node.fail(A, "corrupt")
    asks(engine, keys(2))
    assert states(node.answer((0, 1, "n2"))) == [GONE]
    assert node.count("peer_breaker_opened_total", reason="corrupt") == 1


def test_one_broken_connection_counts_once_however_many_chunks_it_costs() -> None:
    node, engine = pair()
    asks(engine, keys(1, 2, 3))
    node.answer((0, 3, "n2"))
    for key in keys(1, 2, 3):
        node.fail(key, "gone")
    assert node.core.peers.roster.left_alone == 0


def test_a_peer_that_was_left_alone_is_tried_with_one_chunk() -> None:
    node, engine = pair()
    node.core.peers.roster.by_node["n2"].breaker.failed(node.now, hung=True)
    node.now += 1.0
    asks(engine, keys(1, 2))
    node.answer((0, 2, "n2"))
    assert node.fetching == {A: "n2"}
    node.read(A)
    assert node.core.peers.roster.left_alone == 0


def test_nobody_waits_longer_than_asked_and_what_comes_late_is_kept() -> None:
    node, engine = pair()
    asks(engine, keys(1), wait_ms=200)
    node.answer((0, 1, "n2"))
    assert states(node.wait(0.21)) == [KeyState.DEADLINE]
    node.read(A)
    assert engine.sees(keys(1)) == [HIT]


def test_a_fetch_that_takes_too_long_is_cancelled_and_its_slot_stays_out_of_use_until_it_ends() -> None:
    node, engine = pair(limits={"fetch_wait": 1.0})
    asks(engine, keys(1), wait_ms=5000)
    node.answer((0, 1, "n2"))
    assert states(node.wait(1.0)) == [GONE]
    assert node.states() == {SlotState.DOOMED: 1} and list(node.tries) == node.cancelled
    node.fail(A, "deadline")
    assert node.states() == {}


def test_what_comes_for_a_cancelled_fetch_is_thrown_away() -> None:
    node, engine = pair()
    asks(engine, keys(1))
    node.answer((0, 1, "n2"))
    engine.says(attach.Forget("other weights"))
    assert node.states() == {SlotState.DOOMED: 1}
    node.read(A)
    assert node.states() == {} and node.count("peer_fetches_failed_total", reason="cancelled") == 1


def test_fetches_take_a_share_of_the_pool_and_go_on_as_they_end() -> None:
    node, engine = pair(limits={"fetching_share": 0.25})
    asks(engine, keys(1, 2, 3))
    node.answer((0, 3, "n2"))
    assert list(node.fetching) == keys(1, 2)
    node.read(A)
    assert list(node.fetching) == keys(2, 3)


def test_a_fetch_takes_no_pinned_slot() -> None:
    node, engine = pair(slots=4)
    engine.store(keys(11, 12, 13, 14))
    engine.acquire(keys(11, 12, 13, 14))
    asks(engine, keys(1))
    assert states(node.answer((0, 1, "n2"))) == [KeyState.DEADLINE]


def test_a_peer_that_starts_anew_is_asked_at_once() -> None:
    node, engine = pair()
    asks(engine, keys(1))
    node.answer((0, 1, "n2"))
    node.fail(A, "corrupt")
    node.do(wire.PeersKnown([]))
    node.name("n2")
    asks(engine, keys(2))
    node.answer((0, 1, "n2"))
    assert node.fetching == {B: "n2"}


# -- serving ---------------------------------------------------------------------------------------------


def wants(node: PeerNode, wanted: list[bytes], session: int = 1, **changes: object) -> wire.ServeChunks | None:
    shape: dict[str, object] = {"group": 0, "area_bytes": PAGE, "areas": 1, "deadline_s": 1.0}
    before = len(node.served)
    node.do(wire.PeerAsked(session, 7, b"f" * 32, keys=wanted, **(shape | changes)))  # type: ignore[arg-type]
    return node.served[-1] if len(node.served) > before else None


def holding(*numbers: int, **changes: object) -> tuple[PeerNode, Engine]:
    node, engine = pair(**changes)
    engine.store(keys(*numbers))
    node.check()
    return node, engine


def test_a_peer_gets_what_is_here_with_its_checksums() -> None:
    node, _ = holding(1)
    served = wants(node, keys(1, 2))
    assert served is not None and served.states == [FetchState.OK, FetchState.NOT_HERE]
    assert [(one.slot, one.checksums) for one in served.items] == [(node.slot_of(A), (0,))]


def test_what_has_no_checksum_yet_is_not_given_away() -> None:
    node, engine = pair()
    engine.store(keys(1))
    served = wants(node, keys(1))
    assert served is not None and served.states == [FetchState.NOT_HERE]


def test_what_a_peer_is_being_sent_stays_until_that_has_ended() -> None:
    node, engine = holding(1)
    wants(node, keys(1))
    engine.says(attach.Forget("other weights"))
    assert node.states() == {SlotState.DOOMED: 1}
    node.do(wire.PeerSessionClosed(1))
    assert node.states() == {SlotState.DOOMED: 1}
    node.do(wire.PeerServed(1, 7))
    assert node.states() == {}


def test_another_geometry_is_refused() -> None:
    node, _ = holding(1)
    served = wants(node, keys(1), area_bytes=2 * PAGE)
    assert served is not None and served.states == [FetchState.SHAPE]


def test_a_peer_gets_only_so_much_at_a_time() -> None:
    node, _ = holding(1, 2, 3, limits={"max_serving": 2})
    served = wants(node, keys(1, 2, 3))
    assert served is not None and served.states == [FetchState.OK, FetchState.OK, FetchState.BUSY]
    second = wants(node, keys(1), session=2)
    assert second is not None and second.states == [FetchState.BUSY]
    node.do(wire.PeerServed(1, 7))
    node.do(wire.PeerServed(2, 7))
    again = wants(node, keys(1), session=3)
    assert again is not None and again.states == [FetchState.OK]


def on_disk() -> PeerNode:
    node, engine = pair(directories=1, slots=4)
    spilt(node, engine, keys(1))
    spilt(node, engine, keys(11, 12, 13, 14))
    return node


def test_what_lies_on_disk_is_read_for_a_peer_first() -> None:
    node = on_disk()
    assert wants(node, keys(1)) is None
    node.settle(disk_wire.ReadExtent)
    assert node.served[-1].states == [FetchState.OK]


def test_a_peer_is_told_in_time_if_the_disk_is_slow() -> None:
    node = on_disk()
    assert wants(node, keys(1), deadline_s=1.0) is None
    node.wait(0.5)
    assert node.served[-1].states == [FetchState.NOT_HERE]


def test_a_peer_that_goes_while_the_disk_reads_holds_nothing() -> None:
    node = on_disk()
    wants(node, keys(1))
    node.do(wire.PeerSessionClosed(1))
    node.settle()
    assert not node.served and not node.core.peers.serving.all
