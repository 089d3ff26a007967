"""The simulator's disk in virtual time: bounds, hangs, and what a kill and a loss of power leave behind."""

from __future__ import annotations

import random

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.io import DiskFile, read_full, write_all
from sim.clock import Clock
from sim.disk import ModelDisk
from support.disk_faults import WRITES, Fault, Kind


def page(value: int) -> memoryview:
    memory = aligned(PAGE)
    memory[:] = bytes([value]) * PAGE
    return memory


class Bench:
    """A disk with one file of 8 pages, and the answers that came."""

    def __init__(self, seed: int = 1, *, depth: int = 2, waiting: int = 4) -> None:
        self.clock = Clock()
        self.disk = ModelDisk(self.clock, random.Random(seed), 64 * PAGE, depth=depth, waiting=waiting)
        made = self.disk.directory.create("a", 8 * PAGE, direct=True)
        made.fdatasync()
        made.close()
        self.disk.directory.sync()
        self.answers: list[object] = []

    def write(self, at: int, value: int, *, sync: bool = False) -> bool:
        def act() -> str:
            file: DiskFile = self.disk.directory.open("a", direct=True, write=True)
            write_all(file, [page(value)], at * PAGE)
            if sync:
                file.fdatasync()
            file.close()
            return "written"

        return self.disk.submit(PAGE, act, self.answers.append)

    def first_bytes(self) -> list[int]:
        """The first byte of each page."""
        memory = aligned(8 * PAGE)
        file = self.disk.directory.open("a", direct=True)
        assert read_full(file, [memory], 0) == 8 * PAGE
        file.close()
        return [memory[at * PAGE] for at in range(8)]


def test_operations_take_time_and_end_once() -> None:
    bench = Bench()
    assert bench.write(0, 1) and bench.write(1, 2)
    assert bench.answers == [] and bench.first_bytes() == [0] * 8
    bench.clock.run_until(1.0)
    assert bench.answers == ["written", "written"]
    assert bench.first_bytes()[:2] == [1, 2]


def test_no_more_are_under_way_or_waiting_than_allowed() -> None:
    bench = Bench(depth=2, waiting=4)
    assert [bench.write(0, 1) for _ in range(8)] == [True] * 6 + [False] * 2
    assert bench.disk.under_way == 2
    bench.clock.run_until(1.0)
    assert len(bench.answers) == 6


def test_a_hung_disk_answers_after_it_was_healed() -> None:
    bench = Bench()
    bench.disk.hang()
    bench.write(0, 1)
    bench.clock.run_until(100.0)
    assert bench.answers == []
    bench.disk.heal()
    bench.clock.run_until(101.0)
    assert bench.answers == ["written"]


def test_an_error_is_the_answer() -> None:
    bench = Bench()
    bench.disk.inject(Fault(Kind.EIO, WRITES))
    bench.write(0, 1)
    bench.clock.run_until(1.0)
    (answer,) = bench.answers
    assert isinstance(answer, OSError)


def test_a_kill_keeps_what_was_written_and_answers_nobody() -> None:
    left = set()
    for seed in range(30):
        bench = Bench(seed)
        bench.write(0, 1)
        bench.clock.run_until(1.0)
        bench.write(1, 2)
        bench.write(2, 3)
        bench.disk.kill_process()
        bench.clock.run_until(2.0)
        assert bench.answers == ["written"]
        first, second, third, *_ = bench.first_bytes()
        assert first == 1
        left.add((second, third))
    assert left == {(0, 0), (2, 0), (0, 3), (2, 3)}


def test_a_loss_of_power_keeps_what_was_synced_and_some_of_the_rest() -> None:
    left = set()
    for seed in range(20):
        bench = Bench(seed)
        bench.write(0, 1, sync=True)
        bench.clock.run_until(1.0)
        bench.write(1, 2)
        bench.clock.run_until(2.0)
        bench.disk.cut_power()
        assert bench.first_bytes()[0] == 1
        left.add(bench.first_bytes()[1])
    assert left == {0, 2}


def test_the_space_of_a_file_that_a_dead_process_had_open_is_free() -> None:
    bench = Bench()
    bench.disk.directory.open("a", direct=True)
    bench.disk.directory.unlink("a")
    bench.disk.kill_process()
    assert bench.disk.directory.space().free == bench.disk.directory.space().total
