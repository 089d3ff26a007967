"""Stores and loads through a real worker process: bit-exact, partial, verified, refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.common.identity import fingerprint
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.copies.base import PagedTensor
from blockyard.engine.jobs import BlockRange, CopyJob
from support.engine_side import EngineSide, key_of, pages, states, wait_until
from support.worker_process import WorkerProcess

OK = [CopyState.OK]


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with WorkerProcess() as worker:
        yield worker.socket


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """Keys that no other test of this module uses."""
    return iter(range(1, 1 << 20))


@pytest.fixture
def keys(numbers: Iterator[int]) -> list[bytes]:
    return [key_of(next(numbers)) for _ in range(3)]


GEOMETRIES = {
    "even": lambda: [pages(64, 4096), pages(64, 4096)],
    "odd": lambda: [pages(64, 4097), pages(64, 13)],
    "strided": lambda: [pages(64, 1000, 1056), pages(64, 64, 72)],
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_what_was_stored_comes_back(socket: Path, keys: list[bytes], name: str) -> None:
    world = fingerprint({"geometry": name})
    with EngineSide(socket, GEOMETRIES[name](), world=world) as engine:
        engine.wait_attached()
        before = [engine.content(index) for index in range(3)]
        stored = engine.store(keys)
        assert stored.states == OK * 3
        assert stored.copied == 3 * sum(4 * paged.page_bytes for paged in engine.tensors)
        engine.zero()
        loaded = engine.load(keys, [engine.chunk(index) for index in (5, 3, 4)])
        assert loaded.states == OK * 3 and loaded.copied == stored.copied
        assert [engine.content(index) for index in (5, 3, 4)] == before


def test_another_engine_of_the_same_world_hits(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as first, EngineSide(socket) as second:
        first.wait_attached().store(keys)
        second.wait_attached().load(keys)
        assert [second.content(index) for index in range(3)] == [first.content(index) for index in range(3)]


def test_part_of_the_first_chunk(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as engine:
        before = engine.wait_attached().content(0)
        engine.store(keys[:1])
        untouched = engine.content(2)
        result = engine.load(keys[:1], [engine.chunk(2, first_page=1)])
        assert result.states == OK
        assert engine.content(2) == [untouched[0], *before[1:]]


def test_a_second_store_of_a_key_is_a_duplicate(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as engine:
        engine.wait_attached().store(keys[:1])
        result = engine.store(keys[:2])
        assert result.states == [CopyState.DUPLICATE, CopyState.OK]


def test_a_load_without_its_pin_is_stale(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as engine:
        engine.wait_attached().store(keys[:1])
        grant = engine.ask(keys[:1])
        engine.scheduler.release(grant)
        engine.ask([key_of(0)])  # The worker has read the release once it answers this.
        engine.submit_load(keys[:1], [engine.chunk(0)], grant.number)
        assert engine.result().states == [CopyState.STALE]


def test_a_store_that_the_scheduler_never_announced(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as engine:
        engine.wait_attached()
        engine.rank.submit(CopyJob(77, "store", keys[:1], [engine.chunk(0)]))
        assert engine.result().states == [CopyState.UNKNOWN_JOB]
        assert engine.store(keys[:1]).ok, "the session goes on"


def test_misses_say_why(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as engine:
        engine.wait_attached().store(keys[:1])
        grant = engine.ask(keys)
        assert states(grant) == [KeyState.HIT, KeyState.NEVER_STORED, KeyState.NEVER_STORED]


def test_forgotten_chunks_are_gone(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket, world=fingerprint({"weights": "old"})) as engine:
        engine.wait_attached().store(keys)
        engine.scheduler.forget("weights were updated")
        assert KeyState.HIT not in states(engine.ask(keys))


def test_a_malformed_job_ends_at_once(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as engine:
        engine.wait_attached()
        engine.rank.submit(CopyJob(1, "store", keys[:1], [BlockRange([0], group=9)]))
        engine.rank.submit(CopyJob(2, "load", keys[:2], [engine.chunk(0)]))
        found = engine.rank.finished()
        assert [result.states for result in found] == [[CopyState.COPY_ERROR], [CopyState.COPY_ERROR] * 2]


def test_blocks_that_do_not_exist_fail_the_copy_alone(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket) as engine:
        engine.wait_attached()
        assert engine.store(keys[:1], [BlockRange([60, 61, 62, 64])]).states == [CopyState.COPY_ERROR]
        assert engine.store(keys[:1]).ok, "the key is free to be stored again"


def test_cancelled_stores_free_their_slots(keys: list[bytes]) -> None:
    with WorkerProcess(fill_deadline="10m") as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        jobs = [engine.submit_store([key], [engine.chunk(0)]) for key in keys]
        assert engine.rank.wait(set(jobs), 10.0)
        ended = {result.job: result.states[0] for result in engine.rank.finished()}
        assert set(ended) == set(jobs), "nothing is in flight once wait has returned"
        cancelled = [key for job, key in zip(jobs, keys, strict=True) if ended[job] is CopyState.CANCELLED]
        for key in cancelled:
            wait_until(lambda key=key: engine.store([key]).ok, "the key can be stored again")


def flipped(socket: Path, engine: EngineSide, key: bytes) -> None:
    """Store a chunk and flip one of its bytes in the pool, as any process with the pool mapped could."""
    engine.store([key])
    with EngineSide(socket) as other:
        engine.ask_until_hit([key])
        grant = other.wait_attached().ask_until_hit([key])
        other.submit_load([key], [other.chunk(0)], grant.number)
        assert other.result().ok
    mapped = engine.rank._map
    assert mapped is not None
    area = b"".join(bytes(paged.tensor[:4].numpy()) for paged in engine.tensors)
    at = bytes(mapped.pool).find(area)
    assert at >= 0
    mapped.pool[at + 100] ^= 1


def test_verify_catches_a_flipped_byte(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket, verify="always") as engine:
        flipped(socket, engine.wait_attached(), keys[0])
        engine.zero()
        assert engine.load(keys[:1]).states == [CopyState.CORRUPT]
        assert not any(any(map(any, page)) for page in engine.content(0)), "nothing was copied"
        assert states(engine.ask(keys[:1])) == [KeyState.CORRUPT]


def test_without_verify_the_flipped_byte_gets_through(socket: Path, keys: list[bytes]) -> None:
    with EngineSide(socket, verify="off") as engine:
        flipped(socket, engine.wait_attached(), keys[0])
        before = engine.content(0)
        assert engine.load(keys[:1]).ok
        assert engine.content(0) != before, "the control of the test above"


def test_two_ranks_make_one_chunk(socket: Path, keys: list[bytes]) -> None:
    tensors: list[list[PagedTensor]] = [[pages(64, 512)], [pages(64, 512)]]
    world = fingerprint({"tensor_parallel": "2"})
    with (
        EngineSide(socket, tensors[0], world=world, local_ranks=2, name="tp2") as first,
        EngineSide(socket, tensors[1], world=world, rank=1, local_ranks=2, name="tp2", with_scheduler=False) as second,
    ):
        wait_until(lambda: second.rank.state == "attached", "rank 1 attached")
        first.wait_attached()
        before = [first.content(0), second.content(0)]
        job = first.submit_store(keys[:1], [first.chunk(0)])
        assert first.result().ok
        assert states(first.ask(keys[:1])) == [KeyState.BEING_FILLED]
        second.rank.submit(CopyJob(job, "store", keys[:1], [second.chunk(0)]))
        assert second.result().ok
        grant = first.ask_until_hit(keys[:1])
        for side in (first, second):
            side.zero()
            side.submit_load(keys[:1], [side.chunk(0)], grant.number)
            assert side.result().ok
        assert [first.content(0), second.content(0)] == before
