"""Checksums and bad bytes: nothing goes to others unverified, and nothing corrupt is given twice."""

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import SlotState
from blockyard.worker.core import events
from support.worker_core import OK, Engine, Node, keys

HIT, FILLING, CORRUPT = KeyState.HIT, KeyState.BEING_FILLED, KeyState.CORRUPT


def stored(**settings: int) -> tuple[Node, Engine]:
    node = Node(**settings)
    engine = node.engine("a", ranks=2)
    engine.store(keys(1))
    return node, engine


def test_until_its_checksum_stands_a_chunk_is_for_the_storing_engine_alone() -> None:
    node, engine = stored()
    other = node.engine("b", ranks=2)
    assert engine.sees(keys(1)) == [HIT]
    assert other.sees(keys(1)) == [FILLING]
    node.check()
    assert other.sees(keys(1)) == [HIT]
    assert node.table[node.slot_of(keys(1)[0])].checksums == (0, 1)


def test_an_outdated_checksum_changes_nothing() -> None:
    node, engine = stored(slots=2, per_slab=2)
    order = node.to_check.pop()
    engine.store(keys(2))
    newer = node.to_check.pop()
    assert order.slot == newer.slot
    node.do(events.ChecksumDone(order.slot, order.generation, (8, 9)))
    assert node.table[newer.slot].checksums == ()
    node.do(events.ChecksumDone(newer.slot, newer.generation, (8, 9)))
    node.do(events.ChecksumDone(newer.slot, newer.generation, (5, 5)))
    assert node.table[newer.slot].checksums == (8, 9)


def test_what_cannot_be_checked_is_put_aside() -> None:
    node, engine = stored()
    order = node.to_check.pop()
    node.do(events.ChecksumFailed(order.slot, order.generation, "i/o error"))
    assert engine.sees(keys(1)) == [CORRUPT]
    assert node.states() == {}


def test_a_checksum_for_too_few_ranks_is_no_checksum() -> None:
    node, engine = stored()
    order = node.to_check.pop()
    node.do(events.ChecksumDone(order.slot, order.generation, (8,)))
    assert engine.sees(keys(1)) == [CORRUPT]


def test_corrupt_bytes_are_given_to_nobody_again_and_may_be_stored_anew() -> None:
    node, engine = stored()
    node.check()
    _, job = engine.loading(keys(1))
    engine.load_done(job, CopyState.CORRUPT)
    assert engine.sees(keys(1)) == [CORRUPT]
    assert node.states() == {SlotState.DOOMED: 1}
    assert node.count("checksum_mismatches_total") == node.count("quarantined_total") == 1
    node.wait(10)
    assert node.states() == {}
    engine.store(keys(1))
    assert engine.sees(keys(1)) == [HIT]


def test_a_quarantined_slot_waits_for_the_other_rank_that_reads_it() -> None:
    node, engine = stored()
    node.check()
    grant, job = engine.loading(keys(1))
    engine.resolve_load(job, grant, keys(1), rank=1)
    engine.load_done(job, CopyState.CORRUPT, rank=0)
    node.wait(10)
    assert node.states() == {SlotState.DOOMED: 1}
    engine.load_done(job, CopyState.CORRUPT, rank=1)
    assert node.states() == {}
    assert node.count("checksum_mismatches_total") == 1


def test_a_pinned_chunk_that_turned_out_corrupt_cannot_be_loaded_with_its_old_pin() -> None:
    node, engine = stored()
    node.check()
    grant, job = engine.loading(keys(1))
    engine.load_done(job, CopyState.CORRUPT)
    assert engine.resolve_load(99, grant, keys(1)).states == bytes([CopyState.STALE])


def test_only_a_mismatch_puts_a_chunk_aside() -> None:
    node, engine = stored()
    node.check()
    for state in CopyState:
        if state not in (OK, CopyState.CORRUPT):
            _, job = engine.loading(keys(1))
            engine.load_done(job, state)
    assert engine.sees(keys(1)) == [HIT]
    assert node.count("quarantined_total") == 0
