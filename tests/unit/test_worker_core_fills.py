"""Stores: reserved by the scheduler, copied by the ranks, visible only when whole."""

from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import PAGE, SlotState
from blockyard.worker.core import events, instructions
from support.worker_core import OK, Node, answer, keys, run

DUPLICATE, NO_ROOM, UNKNOWN_JOB, STALE = (
    CopyState.DUPLICATE,
    CopyState.NO_ROOM,
    CopyState.UNKNOWN_JOB,
    CopyState.STALE,
)


def test_a_chunk_is_invisible_until_every_rank_has_filled_its_area() -> None:
    node = Node()
    engine = node.engine(ranks=2)
    job = engine.fill(keys(1))
    for rank in (0, 1):
        engine.resolve_store(job, keys(1), rank)
    engine.store_done(job, OK, rank=1)
    assert engine.sees(keys(1)) == [KeyState.BEING_FILLED]
    assert node.states() == {SlotState.FILLING: 1}
    out = engine.store_done(job, OK, rank=0)
    assert engine.sees(keys(1)) == [KeyState.HIT]
    record = node.table[node.slot_of(keys(1)[0])]
    assert (record.state, record.part_mask, record.areas) == (SlotState.READY, 0b11, 2)
    kinds = [type(one) for one in out]
    assert kinds == [instructions.WriteSlot, instructions.ComputeChecksum]


def test_a_failed_rank_takes_the_chunk_with_it() -> None:
    node = Node()
    engine = node.engine(ranks=2)
    job = engine.fill(keys(1, 2))
    for rank in (0, 1):
        engine.resolve_store(job, keys(1, 2), rank)
    engine.store_done(job, CopyState.COPY_ERROR, OK, rank=0)
    assert node.states() == {SlotState.DOOMED: 1, SlotState.FILLING: 1}
    engine.store_done(job, OK, OK, rank=1)
    assert engine.sees(keys(1, 2), prefix=False) == [KeyState.NEVER_STORED, KeyState.HIT]
    assert node.count("fills_dropped_total", reason="copy-error") == 1


def test_the_table_is_written_before_the_answer_that_names_the_slot() -> None:
    node = Node()
    engine = node.engine()
    ask = attach.Resolve(7, 1, "store", 0, keys(1)[0], 1000)
    assert engine.says(ask, rank=0) == []
    out = engine.says(attach.Fill(1, "request", [run(keys(1))]))
    assert [type(one) for one in out] == [instructions.WriteSlot, instructions.Send]
    told = answer(out, attach.Resolved)
    assert (told.states, told.generations) == (bytes([OK]), [out[0].record.generation])


def test_a_parked_resolve_ends_unknown_at_its_deadline() -> None:
    node = Node()
    engine = node.engine()
    engine.says(attach.Resolve(7, 1, "store", 0, keys(1)[0], 500), rank=0)
    assert node.core.next_deadline() == node.now + 0.5
    assert node.wait(0.4) == []
    told = answer(node.wait(0.2), attach.Resolved)
    assert told.states == bytes([UNKNOWN_JOB])


def test_only_so_many_resolves_are_parked() -> None:
    node = Node(max_parked=1)
    engine = node.engine()
    assert engine.says(attach.Resolve(1, 1, "store", 0, keys(1)[0], 500), rank=0) == []
    told = answer(engine.says(attach.Resolve(2, 2, "store", 0, keys(1)[0], 500), rank=0), attach.Resolved)
    assert told.states == bytes([UNKNOWN_JOB])


def test_the_second_store_of_a_key_loses() -> None:
    node = Node()
    first, second = node.engine("a"), node.engine("b")
    first.fill(keys(1))
    assert second.store(keys(1)) == [DUPLICATE]
    first.resolve_store(1, keys(1))
    first.store_done(1, OK)
    assert second.store(keys(1)) == [DUPLICATE]
    assert node.states() == {SlotState.READY: 1}
    assert node.count("fills_duplicate_total") == 2


def test_a_key_twice_in_a_job_is_copied_once() -> None:
    node = Node()
    engine = node.engine()
    job = engine.fill(keys(1, 1))
    assert engine.resolve_store(job, keys(1, 1)).states == bytes([OK, STALE])
    engine.store_done(job, OK, OK)
    assert engine.sees(keys(1)) == [KeyState.HIT]


def test_a_completion_before_creation_twice_or_late_changes_nothing() -> None:
    node = Node()
    engine = node.engine()
    engine.store_done(1, OK)
    engine.load_done(1, OK)
    job = engine.fill(keys(1))
    engine.store_done(job, OK)
    assert engine.sees(keys(1)) == [KeyState.BEING_FILLED]
    engine.resolve_store(job, keys(1))
    engine.store_done(job, OK)
    engine.store_done(job, CopyState.COPY_ERROR)
    assert engine.sees(keys(1)) == [KeyState.HIT]
    assert node.count("frames_refused_total", reason="unexpected") == 4


def test_a_second_resolve_of_a_running_job_gets_nothing() -> None:
    node = Node()
    engine = node.engine()
    job = engine.fill(keys(1))
    engine.resolve_store(job, keys(1))
    assert engine.resolve_store(job, keys(1)).states == bytes([STALE])
    engine.store_done(job, OK)
    assert engine.sees(keys(1)) == [KeyState.HIT]


def test_a_fill_without_copier_is_freed_at_its_deadline_and_a_copied_one_doomed() -> None:
    node = Node(slots=4)
    engine = node.engine()
    idle, copied = engine.fill(keys(1)), engine.fill(keys(2))
    engine.resolve_store(copied, keys(2))
    node.wait(10)
    assert node.states() == {SlotState.DOOMED: 1}
    assert engine.resolve_store(idle, keys(1)).states == bytes([UNKNOWN_JOB])
    assert engine.store(keys(3, 4, 5, 6)) == [OK, OK, OK, NO_ROOM]
    engine.store_done(copied, OK)
    assert SlotState.DOOMED not in node.states()
    assert engine.sees(keys(2)) == [KeyState.NEVER_STORED]
    assert node.count("fills_dropped_total", reason="deadline") == 2


def test_an_orphaned_fill_does_not_defer_others_for_ever() -> None:
    node = Node()
    dead, alive = node.engine("a"), node.engine("b")
    dead.fill(keys(1))
    assert alive.sees(keys(1)) == [KeyState.BEING_FILLED]
    node.do(events.ProcessGone(dead.scheduler))
    assert alive.sees(keys(1)) == [KeyState.NEVER_STORED]
    assert alive.store(keys(1)) == [OK]


def test_fills_of_an_engine_are_bounded() -> None:
    node = Node(max_fills_per_engine=2)
    engine = node.engine()
    job = engine.fill(keys(1, 2, 3))
    assert engine.resolve_store(job, keys(1, 2, 3)).states == bytes([OK, OK, NO_ROOM])
    assert node.count("fills_refused_total", reason="fill-budget") == 1
    engine.store_done(job, OK, OK, NO_ROOM)
    assert engine.store(keys(3)) == [OK]


def test_jobs_of_an_engine_are_bounded_and_come_free_at_their_deadline() -> None:
    node = Node(max_jobs_per_engine=1)
    engine = node.engine()
    engine.fill(keys(1))
    assert engine.store(keys(2)) == [UNKNOWN_JOB]
    node.wait(10)
    assert engine.store(keys(2)) == [OK]


def test_a_prompt_stored_again_and_again_takes_no_more_room() -> None:
    node = Node(slots=64)
    engine = node.engine()
    for _ in range(50):
        engine.store(keys(1, 2, 3, 4))
    assert node.states() == {SlotState.READY: 4}


def test_nothing_is_reserved_while_a_rank_is_missing() -> None:
    node = Node()
    engine = node.engine(ranks=2)
    node.do(events.SessionClosed(engine.ranks[1]))
    job = engine.fill(keys(1))
    assert engine.resolve_store(job, keys(1), rank=0).states == bytes([NO_ROOM])
    assert node.states() == {}


def test_copied_bytes_are_counted_from_the_ranks_reports() -> None:
    node = Node()
    engine = node.engine()
    engine.store(keys(1))
    _, job = engine.loading(keys(1))
    engine.load_done(job, OK)
    assert node.count("copy_bytes_total", leg="gpu_to_host") == 10
    assert node.count("copy_bytes_total", leg="host_to_gpu") == 10


def test_slots_lie_apart_and_ranks_by_page() -> None:
    node = Node(slots=8, per_slab=8)
    engine = node.engine(ranks=2, groups=[attach.GroupShape(0, 256, PAGE - 96)])
    engine.store(keys(1, 2))
    shown = sorted(record.offset for record in node.table.values())
    assert shown == [0, 2 * PAGE]
    record = node.table[node.slot_of(keys(1)[0])]
    assert (record.slot_bytes, record.area_stride, record.area_bytes) == (2 * PAGE, PAGE, PAGE - 96)
