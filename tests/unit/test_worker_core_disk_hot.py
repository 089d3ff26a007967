"""The disk tier of the worker core: what is asked for again and again stays on disk, whatever streams through."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import pytest

from blockyard.common.messages import attach
from blockyard.common.messages.states import KeyState
from support.disk_device import EXTENT, DiskNode
from support.disk_engine import HIT, spilt
from support.worker_core import Engine, keys, run

SEGMENTS, PER_SEGMENT, SLOTS = 8, 8, 8
CAP = SEGMENTS * PER_SEGMENT * EXTENT


def small_disk(**disk: object) -> tuple[DiskNode, Engine]:
    """A pool of 8 chunks over a disk of 64."""
    node = DiskNode(SLOTS, segments=SEGMENTS, per_segment=PER_SEGMENT, disk=disk)
    return node, node.engine()


def fetched(node: DiskNode, engine: Engine, wanted: list[bytes]) -> list[bytes]:
    """Those of these keys that a request gets, from whichever tier."""
    engine.says(attach.Acquire(1, "hot", [run(wanted, prefix=False)], 500))
    node.settle()
    engine.says(attach.Finish("hot"))
    states = engine.sees(wanted, prefix=False)
    return [key for key, state in zip(wanted, states, strict=True) if state is HIT]


def stream(node: DiskNode, engine: Engine, numbers: Iterator[int], chunks: int) -> None:
    """Chunks that nobody asks for again; more than the pool holds, so that all else leaves it."""
    for _ in range(0, chunks, SLOTS // 2):
        spilt(node, engine, keys(*islice(numbers, SLOTS // 2)))
        node.settle()
        assert len(node.devices[0].segments) <= SEGMENTS


@pytest.mark.parametrize(("hot", "between"), [(2, 48), (6, 48), (6, 16)])
def test_what_is_asked_for_again_and_again_stays_on_disk(hot: int, between: int) -> None:
    """Though the disk is written anew 16 times, and the pool `between` two requests."""
    node, engine = small_disk()
    fresh, wanted = count(1000), keys(*range(1, hot + 1))
    spilt(node, engine, wanted)
    for _ in range(16 * SEGMENTS * PER_SEGMENT // between):
        stream(node, engine, fresh, between)
        assert fetched(node, engine, wanted) == wanted
    assert node.count("disk_moved_bytes_total") <= 0.5 * node.count("disk_written_bytes_total")


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_moving_on_is_a_share_of_what_is_written(share: float) -> None:
    """Even if everything on disk is asked for all the time."""
    node, engine = small_disk(forward_share=share)
    fresh = count(1000)
    while node.count("disk_written_bytes_total") < 8 * CAP:
        stream(node, engine, fresh, SLOTS)
        held = [copy.key for copy in node.core.disk.directories.copies()]
        for start in range(0, len(held), SLOTS):
            fetched(node, engine, held[start : start + SLOTS])
    moved, written = (node.count(f"disk_{name}_bytes_total") for name in ("moved", "written"))
    assert moved <= share * (written + CAP)
    assert moved >= share * written * 0.8


def test_a_request_that_goes_on_does_not_touch_its_own_chunks_twice() -> None:
    node, engine = small_disk(admission="second-touch")
    for number in range(1, 9):
        engine.store(keys(number), parent=b"" if number == 1 else keys(number - 1)[0])
        node.check()
    node.wait(0.1)
    assert not node.pending
    assert engine.sees(keys(1, 2)) == [HIT, HIT]
    node.wait(0.1)
    node.settle()
    assert sorted(copy.key for copy in node.core.disk.directories.copies()) == keys(1, 2)
    stream(node, engine, count(1000), 2 * SLOTS)
    assert node.count("disk_written_bytes_total") == 2 * EXTENT
    assert engine.sees(keys(8)) == [KeyState.NOT_ADMITTED]
