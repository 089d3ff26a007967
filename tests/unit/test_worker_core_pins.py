"""Lookups, grants and loads: what is pinned stays, and every pin ends."""

import pytest

from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.metrics.equalities import broken
from blockyard.common.slot_table import SlotState
from blockyard.worker.core import events
from support.worker_core import OK, Engine, Node, answer, keys, run

HIT, NEVER = KeyState.HIT, KeyState.NEVER_STORED
STALE = CopyState.STALE


def warm(slots: int = 8, **settings: object) -> tuple[Node, Engine]:
    """A node whose pool holds keys 1 to 4, checked."""
    node = Node(slots=slots, **settings)
    engine = node.engine()
    engine.store(keys(1, 2, 3, 4))
    node.check()
    return node, engine


def test_a_prefix_run_ends_at_its_first_miss_and_a_window_does_not() -> None:
    _, engine = warm()
    assert engine.sees(keys(1, 2, 9, 3)) == [HIT, HIT, NEVER, NEVER]
    assert engine.sees(keys(1, 2, 9, 3), prefix=False) == [HIT, HIT, NEVER, HIT]


def test_a_grant_answers_runs_one_after_the_other() -> None:
    _, engine = warm()
    out = engine.says(attach.Acquire(5, "request", [run(keys(1, 9)), run(keys(2, 3))]))
    grant = answer(out, attach.Grant)
    assert (grant.seq, grant.states) == (5, bytes([HIT, NEVER, HIT, HIT]))
    assert engine.pins() == 3


def test_nothing_found_is_no_grant() -> None:
    _, engine = warm()
    assert engine.acquire(keys(9)).grant == 0


def test_a_group_that_the_engine_does_not_have_is_another_world() -> None:
    _, engine = warm()
    assert engine.sees(keys(1), group=5) == [KeyState.FINGERPRINT]


def test_the_pin_budget_cuts_the_run() -> None:
    node, engine = warm(max_pins_per_engine=3)
    engine.acquire(keys(1), request="other")
    grant = engine.acquire(keys(1, 2, 3, 4))
    assert grant.states == bytes([HIT, HIT, KeyState.PIN_BUDGET, KeyState.PIN_BUDGET])
    engine.says(attach.Finish("other"))
    assert node.count("miss_chunks_total", reason="pin-budget") == 2


def test_a_tiny_pool_never_evicts_what_is_pinned() -> None:
    _, engine = warm(slots=4)
    grant = engine.acquire(keys(1, 2))
    assert engine.store(keys(11, 12, 13)) == [OK, OK, CopyState.NO_ROOM]
    assert engine.sees(keys(1, 2)) == [HIT, HIT]
    engine.says(attach.Release(grant.grant))
    assert engine.store(keys(13)) == [OK]


def test_a_slot_that_is_copied_from_is_not_reused_after_its_pin_has_ended() -> None:
    node, engine = warm(slots=4)
    _, job = engine.loading(keys(1, 2, 3, 4))
    node.wait(10)
    assert engine.pins() == 0
    assert engine.store(keys(11)) == [CopyState.NO_ROOM]
    assert engine.sees(keys(1)) == [HIT]
    engine.load_done(job, OK, OK, OK, OK)
    assert engine.store(keys(11)) == [OK]


@pytest.mark.parametrize("stage", ["granted", "released", "copying", "copied"])
@pytest.mark.parametrize("end", ["finish", "release", "deadline", "process"])
def test_aborted_at_any_stage_a_request_leaves_no_pin(stage: str, end: str) -> None:
    node, engine = warm()
    grant = engine.acquire(keys(1, 2)).grant
    if stage == "released":
        engine.says(attach.Release(grant, keys(2)[0]))
    if stage in ("copying", "copied"):
        engine.resolve_load(77, grant, keys(1, 2))
    if stage == "copied":
        engine.load_done(77, OK, OK)
    if end == "finish":
        engine.says(attach.Finish("request"))
    elif end == "release":
        engine.says(attach.Release(grant))
    elif end == "deadline":
        node.wait(10)
    else:
        node.do(events.ProcessGone(engine.scheduler))
    assert engine.pins() == 0
    copiers = [chunk.copiers for chunk in node.core.holdings.owners.values()]
    assert sum(copiers) == (2 if stage == "copying" else 0)
    assert node.states() == {SlotState.READY: 4}


def test_releasing_twice_or_of_another_engine_changes_nothing() -> None:
    node, engine = warm()
    other = node.engine("b")
    grant = engine.acquire(keys(1)).grant
    other.says(attach.Release(grant))
    assert engine.pins() == 1
    for _ in range(2):
        engine.says(attach.Release(grant))
    assert engine.pins() == 0


def test_a_load_needs_a_pin_of_its_own_engine() -> None:
    node, engine = warm()
    other = node.engine("b")
    grant = engine.acquire(keys(1)).grant
    assert engine.resolve_load(1, grant, keys(1, 2)).states == bytes([OK, STALE])
    assert other.resolve_load(1, grant, keys(1)).states == bytes([STALE])
    assert engine.resolve_load(2, 999, keys(1)).states == bytes([STALE])


def test_fifty_requests_load_one_prefix_side_by_side() -> None:
    _, engine = warm()
    for number in range(50):
        grant = engine.acquire(keys(1, 2), request=f"r{number}")
        assert engine.resolve_load(number, grant.grant, keys(1, 2)).states == bytes([OK, OK])
    assert engine.pins() == 100


def test_a_failed_load_is_counted_and_the_chunk_stays() -> None:
    node, engine = warm()
    _, job = engine.loading(keys(1, 2))
    engine.load_done(job, OK, CopyState.COPY_ERROR)
    assert engine.sees(keys(1, 2)) == [HIT, HIT]
    assert node.count("loads_failed_total", reason="copy-error") == 1
    assert node.count("loads_completed_total") == 1


def test_a_load_that_does_not_say_how_it_went_has_failed() -> None:
    node, engine = warm()
    _, job = engine.loading(keys(1, 2))
    engine.load_done(job, OK)
    _, job = engine.loading(keys(1))
    engine.load_done(job, 250)
    assert node.count("loads_failed_total", reason="copy-error") == 2


def test_the_deepest_chunk_of_a_request_goes_first() -> None:
    _, engine = warm(slots=4)
    assert engine.sees(keys(1, 2, 3, 4)) == [HIT] * 4
    engine.store(keys(11))
    assert engine.sees(keys(1, 2, 3, 4)) == [HIT] * 3 + [KeyState.EVICTED_HOST]


def test_a_later_chunk_of_a_request_keeps_its_whole_prefix_warm() -> None:
    node = Node(slots=4)
    engine = node.engine()
    engine.store(keys(1, 2))
    engine.store(keys(11))
    engine.store(keys(3), parent=keys(2)[0])
    engine.store(keys(12))
    assert engine.sees(keys(11)) == [KeyState.EVICTED_HOST]
    assert engine.sees(keys(1, 2, 3)) == [HIT] * 3


def test_a_request_larger_than_the_pool_does_not_evict_its_own_beginning() -> None:
    node = Node(slots=4)
    engine = node.engine()
    engine.store(keys(1, 2, 3))
    told = engine.store(keys(1, 2, 3, 4, 5, 6))
    assert told == [CopyState.DUPLICATE] * 3 + [OK, CopyState.NO_ROOM, CopyState.NO_ROOM]
    assert engine.sees(keys(1, 2, 3, 4)) == [HIT] * 4


def test_a_prefix_in_use_outlives_prompts_that_are_seen_once() -> None:
    node = Node(slots=8)
    engine = node.engine()
    engine.store(keys(1, 2))
    for number in range(100, 140):
        engine.store(keys(number))
        assert engine.sees(keys(1, 2)) == [HIT, HIT]


def test_forget_drops_a_world_and_spares_another() -> None:
    node, engine = warm()
    other = node.engine("b", fingerprint=b"g" * 32)
    other.store(keys(21))
    _, job = engine.loading(keys(1))
    filling = engine.fill(keys(5))
    engine.says(attach.Forget("weights were updated"))
    assert engine.sees(keys(1, 2, 5), prefix=False) == [NEVER] * 3
    assert other.sees(keys(21)) == [HIT]
    assert node.states() == {SlotState.DOOMED: 1, SlotState.READY: 1}
    assert engine.resolve_store(filling, keys(5)).states != bytes([OK])
    engine.load_done(job, OK)
    engine.says(attach.Finish("request"))
    assert node.states() == {SlotState.READY: 1}


def test_every_key_asked_for_is_a_hit_or_has_one_reason() -> None:
    node, engine = warm(slots=4)
    engine.fill(keys(11))
    engine.sees(keys(1, 2, 3, 4, 11, 12), prefix=False)
    engine.sees(keys(1, 12, 13))
    node.core.show_gauges()
    assert broken(node.core.counters) == []
