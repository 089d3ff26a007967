"""A real worker with real files: chunks come back from disk, over restarts and deaths, and are what they were."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.common.messages.states import KeyState
from support.disk_worker import answer
from support.engine_side import EngineSide, key_of, states, wait_until
from support.worker_process import WorkerProcess

# 16 slots of 32 KiB in the pool; 30 chunks are stored, in segments of 31.
POOL = {"host_pool": "1MiB", "slab_size": "1MiB", "min_slot": "64KiB"}
CHUNKS = 30


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    yield disk


def worker_with(folder: Path, size: str = "64MiB", **settings: str) -> WorkerProcess:
    return WorkerProcess(disk=f"{folder}:{size}", disk_segment="4MiB", disk_floor="0B", **(POOL | settings))


def stored(engine: EngineSide, numbers: range) -> None:
    """Each chunk is stored by itself, with what belongs to its key."""
    for number in numbers:
        engine.write(0, key_of(number))
        engine.store([key_of(number)])


def written(engine: EngineSide, worker: WorkerProcess, chunks: int = CHUNKS) -> None:
    """Stored no faster than they are written."""
    for start in range(0, chunks, 10):
        stored(engine, range(start, start + 10))
        wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "all chunks are being written")
    wait_until(lambda: worker.metric("disk_writes_completed_total") == chunks, f"{chunks} chunks on disk")


def comes_back(engine: EngineSide, number: int) -> bool:
    engine.zero()
    engine.load([key_of(number)])
    return engine.holds(0, key_of(number))


def test_what_left_the_pool_comes_back_right(folder: Path) -> None:
    with worker_with(folder) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        written(engine, worker)
        assert worker.metric("slots", state="ready") == 16
        assert all(comes_back(engine, number) for number in range(CHUNKS))
        assert worker.metric("hit_chunks_total", tier="disk") > 0
        assert worker.get("/healthz")[0] == 200


def test_a_killed_worker_loses_nothing_that_was_on_disk(folder: Path) -> None:
    with worker_with(folder) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        written(engine, worker)
        worker.kill()
        worker.start()
        wait_until(lambda: worker.metric("disk_copies") == CHUNKS, "all copies are known again")
        engine.wait_attached()
        assert all(comes_back(engine, number) for number in range(CHUNKS))


def test_a_worker_that_ends_leaves_sealed_files(folder: Path) -> None:
    with worker_with(folder) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        written(engine, worker)
        assert worker.terminate() == 0
        assert sum(file.stat().st_size for file in folder.glob("*.segment")) < 4 << 20
        worker.start()
        wait_until(lambda: worker.metric("disk_copies") == CHUNKS, "all copies are known again")


def test_spoilt_bytes_on_disk_are_a_miss_and_never_come_back(folder: Path) -> None:
    with worker_with(folder) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        written(engine, worker)
        for file in folder.glob("*.segment"):
            with open(file, "r+b") as raw:
                for offset in range(2 * 4096 + 100, file.stat().st_size, 4096):
                    raw.seek(offset)
                    raw.write(b"spoilt")
        assert states(engine.ask([key_of(0)], wait=0.5)) == [KeyState.CORRUPT]
        assert worker.metric("disk_reads_failed_total", reason="corrupt") == 1
        worker.kill()
        worker.start()
        engine.wait_attached()
        for number in range(CHUNKS):
            wait_until(lambda number=number: not engine.ask([key_of(number)], wait=0.5).number, "a miss")


def test_the_cap_holds_while_chunks_stream_through(folder: Path) -> None:
    with worker_with(folder, "20MiB") as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        most = 0
        for start in range(0, 900, 30):
            stored(engine, range(start, start + 30))
            most = max(most, sum(file.stat().st_blocks * 512 for file in folder.iterdir()))
        assert most <= 20 << 20
        assert worker.metric("disk_evictions_total") > 0
        wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "everything is written")
        assert comes_back(engine, 880)


def test_two_workers_never_share_a_directory(folder: Path) -> None:
    with worker_with(folder), pytest.raises(RuntimeError, match=r"disk directory .* is in use by worker test-node"):
        worker_with(folder, node_id="other").start()


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        ("/nowhere/at/all:1GiB", "must name a directory that exists"),
        ("{folder}:1000TiB", "its file system has .* at most .* would fit"),
        ("{folder}:2MiB", "must hold 4 files of disk_segment, 4MiB: at least 20MiB"),
        ("relative:1GiB", "must be DIR:SIZE with an absolute path"),
    ],
)
def test_a_directory_that_cannot_be_used_is_refused_at_start(folder: Path, disk: str, words: str) -> None:
    worker = WorkerProcess(disk=disk.format(folder=folder), disk_segment="4MiB", spawn_only=True, **POOL)
    with pytest.raises(RuntimeError, match=words), worker:
        worker.start()


def test_a_directory_that_vanishes_costs_no_request_and_is_used_when_it_is_there_again(folder: Path) -> None:
    with worker_with(folder, disk_patience="10s") as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        written(engine, worker)
        shutil.rmtree(folder)
        assert KeyState.DISABLED in {answer(engine, number) for number in range(CHUNKS)}
        stored(engine, range(100, 110))
        assert engine.ask_until_hit([key_of(109)])
        wait_until(lambda: "not there any more" in worker.ready()[1].get(f"disk {folder}", ""), "it is told")
        assert worker.metric("disk_devices_left_alone") == 1
        folder.mkdir()
        wait_until(lambda: f"disk {folder}" not in worker.ready()[1], "it is used again")
        for start in (200, 300, 400):
            stored(engine, range(start, start + 10))
            wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "all is written")
        assert comes_back(engine, 200)
        with pytest.raises(RuntimeError, match="is in use by worker test-node"):
            worker_with(folder, node_id="other").start()
