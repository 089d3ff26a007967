"""The pool and those who read it off the loop: what they refuse, what they answer, and that they let go."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import xxhash

from blockyard.common.slot_table import SlotRecord, SlotState, read_header, read_record
from blockyard.worker.checksums import Area, ChecksumThreads
from blockyard.worker.pool import HostPool
from blockyard.worker.prefault import Prefault

MIB = 1 << 20
SECONDS = 20.0


@pytest.fixture
def pool() -> Iterator[HostPool]:
    with HostPool(b"b" * 16, 4 * MIB, MIB, 64) as made:
        yield made


@pytest.mark.parametrize(
    ("offset", "areas", "stride", "area_bytes"),
    [
        (4 * MIB, 1, 4096, 1),
        (4 * MIB - 4096, 2, 4096, 4096),
        (-4096, 1, 4096, 4096),
        (0, 0, 4096, 4096),
        (0, 2, 4096, 8192),
        (0, 1, 4096, -1),
    ],
)
def test_bytes_outside_of_the_pool_or_of_an_area_are_not_read(
    pool: HostPool, offset: int, areas: int, stride: int, area_bytes: int
) -> None:
    with pytest.raises(ValueError, match="do not lie in a pool of 4194304 bytes"):
        pool.checksums(offset, areas, stride, area_bytes)


def test_each_area_has_its_own_checksum(pool: HostPool) -> None:
    pool.memory.view[8192:8195] = b"one"
    pool.memory.view[12288:12291] = b"two"
    assert pool.checksums(8192, 2, 4096, 3) == (xxhash.xxh3_64_intdigest(b"one"), xxhash.xxh3_64_intdigest(b"two"))


@pytest.mark.parametrize("slot", [-1, 64])
def test_a_slot_that_the_table_lacks_is_not_written(pool: HostPool, slot: int) -> None:
    with pytest.raises(ValueError, match="the table has 64"):
        pool.write_slot(slot, RECORD)


def test_the_table_reads_as_it_was_written(pool: HostPool) -> None:
    pool.write_slot(63, RECORD)
    with pool.table.view.cast("Q") as words:
        assert read_header(words) == (b"b" * 16, 64, 4 * MIB, MIB)
        assert read_record(words, 63) == RECORD


def test_every_request_is_answered_once_and_waiting_ones_are_bounded_by_slots(pool: HostPool) -> None:
    answers: list[tuple[Area, tuple[int, ...] | str]] = []
    told = threading.Semaphore(0)

    def done(area: Area, result: tuple[int, ...] | str) -> None:
        answers.append((area, result))
        told.release()

    threads = ChecksumThreads(pool, 2, done)
    asked = [Area(number % 4, number, 0, MIB, 1, MIB) for number in range(200)]
    for area in asked:
        threads.submit(area)
    assert all(told.acquire(timeout=SECONDS) for _ in asked)
    threads.stop()
    assert sorted(area.generation for area, _ in answers) == list(range(200))
    zeros = (xxhash.xxh3_64_intdigest(bytes(MIB)),)
    assert {result for _, result in answers} <= {zeros, "the slot has a new owner"}
    newest = {area.slot: result for area, result in sorted(answers, key=lambda answer: answer[0].generation)}
    assert set(newest.values()) == {zeros}


def test_an_impossible_request_is_answered_too(pool: HostPool) -> None:
    told = threading.Event()
    answers: list[tuple[int, ...] | str] = []

    def done(area: Area, result: tuple[int, ...] | str) -> None:
        answers.append(result)
        told.set()

    threads = ChecksumThreads(pool, 1, done)
    threads.submit(Area(0, 1, 5 * MIB, 4096, 1, 4096))
    assert told.wait(SECONDS)
    threads.stop()
    assert isinstance(answers[0], str)


def test_prefault_changes_no_byte_and_can_be_stopped_at_any_time() -> None:
    for stop_at_once in (True, False):
        with HostPool(b"b" * 16, 64 * MIB, MIB, 64) as pool:
            pool.memory.view[5 * MIB : 5 * MIB + 4] = b"kept"
            failures: list[str] = []
            prefault = Prefault(pool.memory, failures.append)
            prefault.start()
            if not stop_at_once:
                prefault.wait(SECONDS)
                assert prefault.done_bytes == 64 * MIB
            prefault.stop()
            assert bytes(pool.memory.view[5 * MIB : 5 * MIB + 4]) == b"kept"
            assert failures == []


def test_a_closed_pool_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    HostPool(b"b" * 16, 4 * MIB, MIB, 64).close()
    assert len(os.listdir("/proc/self/fd")) == before


RECORD = SlotRecord(
    generation=7,
    state=SlotState.READY,
    areas=2,
    offset=MIB,
    slot_bytes=8192,
    area_stride=4096,
    area_bytes=4000,
    part_mask=3,
    key=bytes(range(32)),
    checksums=(1, 2**64 - 1),
)
