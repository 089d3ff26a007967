"""A real worker's disk over restarts, beside a failing one, and when more comes than fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockyard.common.messages.states import KeyState
from support.disk_faults import Kind
from support.disk_worker import (
    MIB,
    answer,
    check_books,
    check_on_disk,
    comes_back,
    disk_worker,
    du,
    readable,
    store_each,
    write_out,
)
from support.engine_side import EngineSide, pages, wait_until
from support.worker_disk_faults import DiskFaults
from support.worker_process import WorkerProcess

CHUNKS = range(100)


@pytest.mark.parametrize("end", [WorkerProcess.terminate, WorkerProcess.kill], ids=["SIGTERM", "SIGKILL"])
def test_what_was_on_disk_is_a_hit_after_a_restart(tmp_path: Path, end: Callable[[WorkerProcess], object]) -> None:
    with disk_worker(tmp_path) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        write_out(engine, worker, CHUNKS)
        end(worker)
        worker.start()
        engine.wait_attached()
        wait_until(lambda: worker.metric("disk_copies") == len(CHUNKS), "all copies are known again")
        assert readable(engine, CHUNKS) == set(CHUNKS)
        assert worker.metric("hit_chunks_total", tier="disk") == len(CHUNKS)
        check_on_disk(worker, [tmp_path], len(CHUNKS))
        check_books(worker)


def test_one_of_two_disks_fails_and_the_other_goes_on(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    faults = DiskFaults()
    with (
        disk_worker(good, bad, program=faults.program, disk_patience="1s") as worker,
        EngineSide(worker.socket) as engine,
    ):
        engine.wait_attached()
        write_out(engine, worker, CHUNKS)
        assert list(good.glob("*.segment")) and list(bad.glob("*.segment"))
        faults.inject(bad, Kind.EIO)
        # Other chunks in the pool, so that these are on disk alone; whoever asks may be told of the failure.
        store_each(engine, range(200, 264))
        told = {number: answer(engine, number) for number in CHUNKS}
        worker.wait_metric("disk_devices_left_alone", 1)
        wait_until(lambda: f"disk {bad}" in worker.ready()[1], "the directory is told to be degraded")
        assert f"disk {good}" not in worker.ready()[1]
        left = {number for number, state in told.items() if state is KeyState.HIT}
        assert 0 < len(left) < len(CHUNKS)
        assert readable(engine, CHUNKS) >= left
        before = faults.seen(good).operations
        write_out(engine, worker, range(300, 320))
        assert faults.seen(good).operations > before
        faults.heal(bad)
        worker.wait_metric("disk_devices_left_alone", 0)
        assert readable(engine, CHUNKS) == set(CHUNKS)
        check_books(worker)


def test_only_what_was_used_again_is_worth_a_write(tmp_path: Path) -> None:
    with disk_worker(tmp_path, disk_admission="second-touch") as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        store_each(engine, range(20))
        assert all(comes_back(engine, number) for number in range(10))
        wait_until(lambda: worker.metric("disk_copies") == 10, "what was used again is written")
        store_each(engine, range(100, 170))
        assert readable(engine, range(10)) == set(range(10))
        assert {answer(engine, number) for number in range(10, 20)} == {KeyState.NOT_ADMITTED}
        assert worker.metric("disk_writes_completed_total") == 10
        check_on_disk(worker, [tmp_path], 10)
        check_books(worker)


def test_a_pool_larger_than_the_disk_does_not_write_for_ever(tmp_path: Path) -> None:
    cap, chunks = 12 * MIB, range(450)
    with (
        disk_worker(tmp_path, size="12MiB", host_pool="16MiB") as worker,
        EngineSide(worker.socket) as engine,
    ):
        engine.wait_attached()
        store_each(engine, chunks)
        wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "nothing waits to be written")
        wait_until(lambda: _at_rest(worker), "nothing is written any more")
        assert du(tmp_path) <= cap
        assert readable(engine, chunks) == set(chunks)
        assert worker.counted("disk_reads_completed_total") == 0
        wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "nothing waits to be written")
        wait_until(lambda: _at_rest(worker), "nothing is written any more")
        check_books(worker)
        worker.kill()
        worker.start()
        engine.wait_attached()
        store_each(engine, [1000])
        wait_until(lambda: worker.metric("disk_writes_completed_total") == 1, "it knows what was left")
        found = readable(engine, [*chunks, 1000])
        check_on_disk(worker, [tmp_path], len(found))
        assert len(found) > 50


def _at_rest(worker: WorkerProcess) -> bool:
    """Whether several looks find the same; each takes longer than the worker would need to begin."""
    return len({worker.metric("disk_writes_started_total") for _ in range(10)}) == 1


class Stream(EngineSide):
    """Chunks of 512 KiB whose bytes are quickly made, each unlike every other."""

    def __init__(self, worker: WorkerProcess) -> None:
        super().__init__(worker.socket, [pages(64, 64 << 10), pages(64, 64 << 10)])

    def write(self, index: int, key: bytes) -> None:
        number = int.from_bytes(key, "big")
        for place, paged in enumerate(self.tensors):
            start = self.chunk(index).block_ids[0]
            rows = paged.tensor[start : start + self.blocks_per_chunk].view(torch.int64)
            torch.arange(rows.numel(), out=(words := torch.empty(rows.numel(), dtype=torch.int64)))
            rows.copy_((words * 0x9E3779B97F4A7C1 + (number << 20) + place).view(rows.shape))


def stream_through(folder: Path, total: int) -> None:
    """More than fits comes by; what is asked for now and then stays, though host memory is too small for it."""
    cap, chunk, hot = 64 * MIB, MIB // 2, range(8)
    settings = {"host_pool": "16MiB", "slab_size": "4MiB", "min_slot": "64KiB", "disk_segment": "8MiB"}
    with disk_worker(folder, size="64MiB", **settings) as worker, Stream(worker) as engine:
        engine.wait_attached()
        store_each(engine, hot)
        most, fresh = 0, 100
        for turn in range(total // chunk // 16):
            store_each(engine, range(fresh, fresh + 16))
            fresh += 16
            most = max(most, du(folder))
            wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "what came is being written")
            if turn % 3 == 2:
                found = readable(engine, hot)
                assert found == set(hot), [answer(engine, number) for number in hot] + [worker.log]
        assert most <= cap
        assert worker.metric("disk_written_bytes_total") > 0.9 * total
        assert worker.metric("disk_reads_completed_total") > total // chunk // 16 // 3
        check_books(worker)


def test_1_gib_through_64_mib(tmp_path: Path) -> None:
    stream_through(tmp_path, 1 << 30)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_10_gib_through_64_mib(tmp_path: Path) -> None:
    stream_through(tmp_path, 10 << 30)
