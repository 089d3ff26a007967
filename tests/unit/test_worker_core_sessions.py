"""Who may attach, and what is left behind when a process dies at the worst moment."""

from typing import Any

import pytest

from blockyard.common.fencing import Epoch
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import PAGE, SlotState
from blockyard.worker.core import events, instructions
from support.worker_core import BOOT, OK, Engine, Node, answer, keys


def code(out: list[instructions.Instruction]) -> str:
    """The refusal, or "" when the session was let in."""
    if any(isinstance(one, instructions.Accept) for one in out):
        return ""
    assert [type(one) for one in out[1:]] == [instructions.CloseSession, instructions.Unwatch]
    return str(answer(out, attach.Refused).code)


def test_ranks_get_memory_and_the_scheduler_is_admitted_after_the_last_of_them() -> None:
    node = Node()
    engine = Engine(node, "a", ranks=2)
    (accept,) = engine.attach_rank(0)
    assert isinstance(accept, instructions.Accept) and accept.with_memory
    assert engine.attach_scheduler() == []
    out = engine.attach_rank(1)
    assert [(one.session, one.with_memory) for one in out] == [(3, True), (2, False)]
    assert out[1].message.groups == [attach.GroupGrant(0, 2 * PAGE, PAGE, PAGE // 2)]


def test_a_scheduler_without_its_ranks_is_refused_in_time() -> None:
    node = Node()
    engine = Engine(node, "a", ranks=2)
    engine.attach_rank(0)
    engine.attach_scheduler()
    out = node.wait(5)
    assert code(out) == "ranks"
    assert "1 of 2 ranks" in answer(out, attach.Refused).detail


@pytest.mark.parametrize("end", [events.SessionClosed(2), events.ProcessGone(2), events.Received(2, attach.Bye())])
def test_a_scheduler_that_leaves_while_it_waits_is_not_admitted(end: events.Event) -> None:
    node = Node()
    engine = Engine(node, "a", ranks=2)
    engine.attach_rank(0)
    engine.attach_scheduler()
    assert instructions.Unwatch(2) in node.do(end)
    out = engine.attach_rank(1)
    assert [one.session for one in out] == [3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"protocol_min": 7, "protocol_max": 9}, "version"),
        ({"groups": [attach.GroupShape(0, 256, 5 * PAGE)]}, "size"),
        ({"groups": [attach.GroupShape(0, 256, 0)]}, "shape"),
        ({"groups": [attach.GroupShape(0, 256, PAGE), attach.GroupShape(0, 16, PAGE)]}, "shape"),
        ({"local_ranks": 1, "rank": 3}, "ranks"),
        ({}, ""),
    ],
)
def test_a_rank_is_refused_for_what_cannot_be_served(changes: dict[str, Any], expected: str) -> None:
    node = Node()
    _, out = node.ask(Engine(node, "a", 1, **changes).hello)
    assert code(out) == expected


def test_a_refusal_for_size_shows_the_arithmetic() -> None:
    node = Node(per_slab=4)
    _, out = node.ask(Engine(node, "a", 2, groups=[attach.GroupShape(0, 256, 2 * PAGE + 1)]).hello)
    detail = answer(out, attach.Refused).detail
    assert "2 ranks x 12288 bytes (8193 in whole pages) = slot of 24576 bytes" in detail
    assert f"slab of {4 * PAGE}" in detail


def test_ranks_and_scheduler_of_an_engine_must_agree() -> None:
    node = Node()
    engine = Engine(node, "a", ranks=2)
    engine.attach_rank(0)
    assert code(engine.attach_rank(1, fingerprint=b"g" * 32)) == "fingerprint"
    assert code(engine.attach_rank(1, local_ranks=3)) == "ranks"
    assert code(engine.attach_rank(1, groups=[attach.GroupShape(0, 256, 99)])) == "shape"
    engine.attach_rank(1)
    wrong = [attach.GroupShape(0, 128, 0)]
    scheduler = engine.scheduler_hello()
    assert code(engine.attach_scheduler(fingerprint=b"g" * 32)) == "fingerprint"
    assert code(node.ask(attach.Hello(**_fields(scheduler) | {"groups": wrong}))[1]) == "shape"
    assert code(engine.attach_scheduler()) == ""


def _fields(hello: attach.Hello) -> dict[str, Any]:
    return {name: getattr(hello, name) for name in hello.__struct_fields__}


def test_one_fingerprint_has_one_geometry_on_a_node() -> None:
    node = Node()
    node.engine("a")
    _, out = node.ask(Engine(node, "b", 1, groups=[attach.GroupShape(0, 256, 100)]).hello)
    assert code(out) == "shape"


def test_a_live_session_is_replaced_only_by_who_names_it() -> None:
    node = Node()
    engine = node.engine()
    first = engine.ranks[0]
    assert code(engine.attach_rank(0)) == "busy"
    assert code(engine.attach_rank(0, previous=first, previous_boot=b"another-boot-16b")) == "busy"
    out = engine.attach_rank(0, previous=first, previous_boot=BOOT)
    assert [type(one) for one in out] == [
        instructions.CloseSession,
        instructions.Unwatch,
        instructions.Accept,
    ]


def test_sessions_and_fingerprints_are_bounded() -> None:
    node = Node(max_sessions=3, max_worlds=1)
    node.engine("a")
    assert code(Engine(node, "b", 1, fingerprint=b"g" * 32).attach_rank(0)) == "busy"
    assert code(Engine(node, "b", 1).attach_rank(0)) == ""
    assert code(Engine(node, "c", 1).attach_rank(0)) == "busy"


def test_a_world_without_engine_and_chunk_makes_way() -> None:
    node = Node(max_worlds=1)
    engine = node.engine("a")
    engine.says(attach.Bye(), rank=0)
    engine.says(attach.Bye())
    assert code(Engine(node, "b", 1, fingerprint=b"g" * 32).attach_rank(0)) == ""


def storing(slots: int = 4) -> tuple[Node, Engine, int]:
    """A full pool of which a rank is filling two slots, and two are reserved without a copier."""
    node = Node(slots=slots)
    engine = node.engine()
    job = engine.fill(keys(1, 2))
    engine.resolve_store(job, keys(1, 2))
    engine.fill(keys(3, 4))
    return node, engine, job


def test_scheduler_killed_during_a_store_dooms_the_slots_until_the_rank_has_ended() -> None:
    node, engine, job = storing()
    node.do(events.ProcessGone(engine.scheduler))
    assert node.states() == {SlotState.DOOMED: 2}
    other = node.engine("b")
    assert other.store(keys(11, 12, 13)) == [OK, OK, CopyState.NO_ROOM]
    engine.store_done(job, OK, OK)
    assert node.states() == {SlotState.READY: 2}
    assert other.sees(keys(1)) == [KeyState.NEVER_STORED]


@pytest.mark.parametrize("first", ["scheduler", "rank"])
def test_both_killed_in_either_order_frees_everything_but_not_before_the_rank_is_gone(first: str) -> None:
    node, engine, _ = storing()
    sessions = [engine.scheduler, engine.ranks[0]]
    for session in sessions if first == "scheduler" else reversed(sessions):
        before = node.states().get(SlotState.DOOMED, 0)
        node.do(events.SessionClosed(session))
        node.do(events.ProcessGone(session))
        assert before == (2 if session == sessions[1] and first == "scheduler" else 0)
    assert node.states() == {}
    assert len(node.core.book) == 0


def test_rank_killed_during_a_store_frees_its_slots_with_the_scheduler_alive() -> None:
    node, engine, _ = storing()
    node.do(events.SessionClosed(engine.ranks[0]))
    assert node.states() == {SlotState.DOOMED: 2}
    node.do(events.ProcessGone(engine.ranks[0]))
    assert node.states() == {}
    assert node.count("fills_dropped_total", reason="engine-gone") == 4
    engine.attach_rank(0)
    assert engine.store(keys(1)) == [OK]


def test_one_rank_of_two_killed_dooms_until_the_other_has_ended() -> None:
    node = Node()
    engine = node.engine(ranks=2)
    job = engine.fill(keys(1))
    for rank in (0, 1):
        engine.resolve_store(job, keys(1), rank)
    node.do(events.ProcessGone(engine.ranks[0]))
    assert node.states() == {SlotState.DOOMED: 1}
    engine.store_done(job, OK, rank=1)
    assert node.states() == {}


def test_a_closed_link_ends_no_copy_and_no_wait_does() -> None:
    node, engine, _ = storing()
    node.do(events.SessionClosed(engine.ranks[0]))
    node.wait(1000)
    assert node.states() == {SlotState.DOOMED: 2}


def test_attaching_again_under_the_old_name_frees_what_was_doomed() -> None:
    node, engine, _ = storing()
    old = engine.ranks[0]
    node.do(events.SessionClosed(old))
    assert code(engine.attach_rank(0)) == ""
    assert node.states() == {SlotState.DOOMED: 2}
    node.do(events.SessionClosed(engine.ranks[0]))
    engine.attach_rank(0, previous=old, previous_boot=BOOT)
    assert node.states() == {}


def test_nobody_can_name_the_session_of_another_engine_or_rank() -> None:
    node, engine, _ = storing()
    old = engine.ranks[0]
    node.do(events.SessionClosed(old))
    Engine(node, "b", 1).attach_rank(0, previous=old, previous_boot=BOOT)
    assert node.states() == {SlotState.DOOMED: 2}


def test_a_dead_rank_ends_its_loads_and_chunks_survive_the_engine() -> None:
    node = Node()
    engine = node.engine("a")
    engine.store(keys(1, 2))
    node.check()
    engine.loading(keys(1, 2))
    node.do(events.ProcessGone(engine.ranks[0]))
    node.do(events.ProcessGone(engine.scheduler))
    assert node.count("loads_failed_total", reason="engine-gone") == 2
    assert node.engine("b").sees(keys(1, 2)) == [KeyState.HIT, KeyState.HIT]


def test_pins_of_a_scheduler_that_lost_its_link_stand_until_their_deadline() -> None:
    node = Node()
    engine = node.engine()
    engine.store(keys(1))
    engine.acquire(keys(1))
    node.do(events.SessionClosed(engine.scheduler))
    assert engine.pins() == 1
    out = node.wait(10)
    assert engine.pins() == 0
    assert instructions.Unwatch(engine.scheduler) in out


def test_a_scheduler_that_attaches_again_has_no_pins_left() -> None:
    node = Node()
    engine = node.engine()
    engine.store(keys(1))
    engine.acquire(keys(1))
    engine.attach_scheduler(previous=engine.scheduler, previous_boot=BOOT)
    assert engine.pins() == 0


def test_an_engine_started_again_under_its_old_name_begins_anew() -> None:
    node, engine, job = storing()
    node.do(events.SessionClosed(engine.scheduler))
    node.do(events.SessionClosed(engine.ranks[0]))
    again = node.engine("a")
    assert again.job < job
    assert again.store(keys(21)) == [OK]


@pytest.mark.parametrize(
    ("message", "rank"),
    [
        (attach.Fill(1, "r", [attach.Run(0, 0, b"", b"ragged")]), None),
        (attach.Acquire(1, "r", [attach.Run(0, 0, b"short", b"")]), None),
        (attach.Acquire(1, "r", [attach.Run(0, 0, b"", bytes(32 * 5000))] * 2), None),
        (attach.Resolve(1, 1, "store", 0, b"ragged", 0), 0),
        (attach.Acquire(1, "r", [attach.Run(0, 0, b"", b"")]), 0),
        (attach.StoreDone(1, b"", 0, 0), None),
        (Engine(Node(), "a", 1).hello, 0),
    ],
)
def test_who_breaks_the_protocol_is_cut_off(message: attach.FromEngine, rank: int | None) -> None:
    node = Node()
    engine = node.engine()
    out = engine.says(message, rank)
    assert [type(one) for one in out[:2]] == [instructions.Send, instructions.CloseSession]
    assert isinstance(answer(out, attach.Closing), attach.Closing)
    assert engine.says(message, rank) == []
    assert node.count("frames_refused_total", reason="malformed") == 1


def test_a_worker_about_to_stop_says_so_and_admits_no_more() -> None:
    node = Node()
    node.engine("a")
    waiting = Engine(node, "b", 1)
    waiting.attach_scheduler()
    out = node.do(events.DrainAsked("worker stops"))
    closed = [one.session for one in out if isinstance(one, instructions.CloseSession)]
    assert sorted(closed) == [1, 2, 3]
    assert code(waiting.attach_rank(0)) == "draining"


def test_a_welcome_names_the_cluster_once_it_is_known() -> None:
    node = Node()
    node.do(events.Incarnated(5))
    node.do(events.LinkUp(Epoch(b"cluster-uid-16by", 3), 0))
    (accept,) = Engine(node, "a", 1).attach_rank(0)
    assert isinstance(accept, instructions.Accept)
    assert accept.message.cluster_uid == b"cluster-uid-16by"
