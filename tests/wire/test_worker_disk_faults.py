"""A real worker whose disk fails: it serves from host memory, waits for nothing, says so, and has it back later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blockyard.common.messages.states import KeyState
from support.disk_faults import READS, WRITES, Fault, Kind
from support.disk_worker import answer, check_books, comes_back, disk_worker, readable, store_each, write_out
from support.engine_side import EngineSide, wait_until
from support.worker_disk_faults import DiskFaults
from support.worker_process import WorkerProcess

# More than the pool has slots: the first are on disk alone.
CHUNKS = range(100)
ON_DISK = range(20)
ON_HOST = range(90, 100)


class Sick:
    """A worker on a disk that can be made to fail, full of chunks that are on disk."""

    def __init__(self, folder: Path, faults: DiskFaults, worker: WorkerProcess, engine: EngineSide) -> None:
        self.folder, self.faults, self.worker, self.engine = folder, faults, worker, engine

    def check_serves_from_host(self, fresh: int) -> None:
        """Hits, loads and stores of host memory are as if there were no disk."""
        for number in ON_HOST:
            assert answer(self.engine, number, wait=0.0) is KeyState.HIT
        assert comes_back(self.engine, ON_HOST[0])
        store_each(self.engine, [fresh])
        wait_until(lambda: answer(self.engine, fresh) is KeyState.HIT, "a fresh chunk is a hit")
        assert self.worker.ready()[0]

    def wait_left_alone(self) -> None:
        """It shows in the metrics and on /readyz."""
        self.worker.wait_metric("disk_devices_left_alone", 1)
        wait_until(lambda: f"disk {self.folder}" in self.worker.ready()[1], "the directory is told to be degraded")

    def heal(self) -> None:
        """Everything is as good as before, and nothing was lost by it."""
        self.faults.heal(self.folder)
        self.worker.wait_metric("disk_devices_left_alone", 0)
        self.worker.wait_metric("disk_operations_hanging", 0)
        wait_until(lambda: self.worker.ready()[1].keys() <= {"leader", "etcd"}, "nothing is degraded")
        assert readable(self.engine, CHUNKS) == set(CHUNKS)
        check_books(self.worker)


@contextmanager
def on_sick_disk(folder: Path, **settings: str) -> Iterator[Sick]:
    """A lookup that is not answered in time costs the engine its session, and fails the test."""
    faults = DiskFaults()
    with (
        disk_worker(folder, program=faults.program, **({"disk_patience": "1s"} | settings)) as worker,
        EngineSide(worker.socket) as engine,
    ):
        engine.wait_attached()
        write_out(engine, worker, CHUNKS)
        yield Sick(folder, faults, worker, engine)


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[Sick]:
    with on_sick_disk(tmp_path) as found:
        yield found


def test_nobody_waits_for_a_device_that_hangs(sick: Sick) -> None:
    sick.faults.inject(sick.folder, Kind.HUNG)
    assert answer(sick.engine, ON_DISK[0], wait=0.3) is KeyState.DEADLINE
    assert sick.faults.seen(sick.folder).hanging
    sick.check_serves_from_host(fresh=1000)
    sick.wait_left_alone()
    assert sick.worker.metric("disk_operations_hanging") > 0
    before = sick.faults.seen(sick.folder).operations
    for number in ON_DISK:
        assert answer(sick.engine, number, wait=0.3) is KeyState.DISABLED
    sick.check_serves_from_host(fresh=1001)
    # A probe or two, and what had begun before.
    assert sick.faults.seen(sick.folder).operations < before + 10
    sick.heal()


@pytest.mark.parametrize("kind", [Kind.EIO, Kind.EROFS])
def test_a_device_that_fails_is_left_alone_until_it_works_again(sick: Sick, kind: Kind) -> None:
    sick.faults.inject(sick.folder, kind)
    for number in ON_DISK:
        assert answer(sick.engine, number) in {KeyState.DEADLINE, KeyState.DISABLED}
    sick.check_serves_from_host(fresh=1000)
    sick.wait_left_alone()
    assert sick.worker.counted("disk_reads_failed_total", reason="corrupt") == 0
    sick.heal()


def test_a_full_file_system_is_read_from_and_written_to_when_there_is_room(sick: Sick) -> None:
    sick.faults.inject(sick.folder, Kind.ENOSPC, on={"pwritev", "create"})
    sick.check_serves_from_host(fresh=1000)
    wait_until(lambda: sick.worker.counted("disk_writes_failed_total", reason="full") > 0, "a write has failed")
    assert sick.worker.metric("disk_devices_left_alone") == 0
    sick.faults.heal(sick.folder)
    wait_until(lambda: sick.worker.metric("disk_spill_backlog") == 0, "what was left is written")
    check_books(sick.worker)


def test_a_slow_device_costs_a_request_its_deadline_and_no_more(tmp_path: Path) -> None:
    with on_sick_disk(tmp_path, disk_patience="20s") as sick:
        sick.faults.inject(tmp_path, Kind.SLOW, on=READS, seconds=0.5)
        assert answer(sick.engine, ON_DISK[0], wait=0.1) is KeyState.DEADLINE
        sick.check_serves_from_host(fresh=1000)
        wait_until(lambda: answer(sick.engine, ON_DISK[0], wait=0.0) is KeyState.HIT, "it was read in the end")
        assert comes_back(sick.engine, ON_DISK[0])
        assert sick.worker.metric("disk_devices_left_alone") == 0
        sick.heal()


def test_flipped_bits_are_a_miss_and_never_an_answer(sick: Sick) -> None:
    sick.faults.inject(sick.folder, Kind.FLIPPED, on=READS, times=1)
    assert answer(sick.engine, ON_DISK[0]) is KeyState.CORRUPT
    assert readable(sick.engine, CHUNKS) == set(CHUNKS[1:])
    sick.faults.inject(sick.folder, Kind.FLIPPED, on=WRITES, name="segment", where=0.7)
    write_out(sick.engine, sick.worker, range(200, 210))
    sick.faults.heal(sick.folder)
    store_each(sick.engine, range(300, 364))
    assert {answer(sick.engine, number) for number in range(200, 210)} == {KeyState.CORRUPT}
    check_books(sick.worker)


def test_a_worker_ends_while_its_device_hangs_and_the_next_one_finds_all(sick: Sick) -> None:
    sick.faults.inject(sick.folder, Kind.HUNG)
    assert answer(sick.engine, ON_DISK[0], wait=0.1) is KeyState.DEADLINE
    assert sick.worker.terminate() == 0
    sick.worker.start()
    sick.engine.wait_attached()
    assert readable(sick.engine, CHUNKS) == set(CHUNKS)


def test_a_device_that_hangs_from_the_start_is_told_and_used_once_it_answers(tmp_path: Path) -> None:
    faults = DiskFaults({tmp_path: [Fault(Kind.HUNG, times=0)]})
    with (
        disk_worker(tmp_path, program=faults.program, disk_patience="1s") as worker,
        EngineSide(worker.socket) as engine,
    ):
        engine.wait_attached()
        store_each(engine, range(10))
        assert answer(engine, 9, wait=0.0) is KeyState.HIT
        wait_until(lambda: f"disk {tmp_path}" in worker.ready()[1], "the directory is told to be degraded")
        faults.heal(tmp_path)
        wait_until(lambda: worker.metric("disk_copies") == 10, "it is written to")
        wait_until(lambda: f"disk {tmp_path}" not in worker.ready()[1], "nothing is degraded")


def test_a_device_that_hangs_leaves_room_in_a_small_pool(tmp_path: Path) -> None:
    faults = DiskFaults()
    settings = {"host_pool": "1MiB", "min_slot": "64KiB"}
    with disk_worker(tmp_path, program=faults.program, **settings) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        write_out(engine, worker, range(5))
        faults.inject(tmp_path, Kind.HUNG)
        store_each(engine, range(100, 140))


def test_a_chunk_whose_place_cannot_be_read_any_more_is_written_anew(sick: Sick) -> None:
    oldest = min(sick.folder.glob("*.segment")).name
    sick.faults.inject(sick.folder, Kind.EIO, on=READS, name=oldest)
    for _ in range(3):
        assert answer(sick.engine, ON_DISK[0]) is not KeyState.HIT
        sick.worker.wait_metric("disk_devices_left_alone", 0)
    store_each(sick.engine, ON_DISK[:1])
    wait_until(lambda: sick.worker.metric("disk_spill_backlog") == 0, "it is being written")
    store_each(sick.engine, range(200, 270))
    assert comes_back(sick.engine, ON_DISK[0])
