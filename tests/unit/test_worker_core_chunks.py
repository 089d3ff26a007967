"""The state table of a chunk, row by row."""

import itertools

import pytest

from blockyard.worker.core.chunks import TABLE, ChunkEvent, ChunkState, ImpossibleTransition, next_state
from support.worker_core import Node, keys

ABSENT, FILLING, READY, DOOMED = ChunkState
ROWS = [
    (ABSENT, ChunkEvent.RESERVED, False, FILLING),
    (FILLING, ChunkEvent.FILLED, False, READY),
    (FILLING, ChunkEvent.ABORTED, False, ABSENT),
    (FILLING, ChunkEvent.ABORTED, True, DOOMED),
    (READY, ChunkEvent.EVICTED, False, ABSENT),
    (READY, ChunkEvent.DROPPED, False, ABSENT),
    (READY, ChunkEvent.DROPPED, True, DOOMED),
    (DOOMED, ChunkEvent.UNUSED, False, ABSENT),
]


@pytest.mark.parametrize(("before", "event", "in_use", "after"), ROWS)
def test_each_row(before: ChunkState, event: ChunkEvent, in_use: bool, after: ChunkState) -> None:
    assert next_state(before, event, in_use) is after


def test_everything_else_raises() -> None:
    allowed = {row[:3] for row in ROWS}
    for case in itertools.product(ChunkState, ChunkEvent, (False, True)):
        if case not in allowed:
            with pytest.raises(ImpossibleTransition):
                next_state(*case)


def test_a_slot_in_use_is_never_given_back() -> None:
    assert all(in_use is not ABSENT for _, in_use in TABLE.values())


def test_a_story_tells_a_chunks_life() -> None:
    node = Node(slots=4)
    engine = node.engine()
    engine.store(keys(1))
    node.check()
    engine.store(keys(2, 3, 4, 5))
    told = [(one.before, one.event, one.after) for one in node.core.story(keys(1)[0])]
    assert told == [
        (ABSENT, ChunkEvent.RESERVED, FILLING),
        (FILLING, ChunkEvent.FILLED, READY),
        (READY, ChunkEvent.EVICTED, ABSENT),
    ]
