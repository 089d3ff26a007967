"""Syncs of a device that hangs: one thread waits for it, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockyard.worker.core.disk import wire
from blockyard.worker.disk.device import Device
from blockyard.worker.disk.opening import Answer
from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.threads import IoClass, IoThreads, Limits
from blockyard.worker.pool import HostPool
from support.disk_bench import open_store
from support.disk_faults import Fault, FaultyDirectory, Kind

SECONDS = 20.0


class Runner:
    """Real threads; who asked is answered on them."""

    def __init__(self) -> None:
        self.threads = IoThreads("test", Limits(hung_after=0.01), time.monotonic)

    def submit(self, kind: IoClass, size: int, work: Callable[[], object], answer: Answer) -> bool:
        return self.threads.submit(kind, work, answer, time.monotonic() + SECONDS) is not None


@pytest.fixture
def faulty(folder: Path) -> Iterator[FaultyDirectory]:
    found = FaultyDirectory(RealDirectory(folder, direct=probe(folder).direct))
    yield found
    found.release()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_sync_that_hangs_is_not_followed_by_others(faulty: FaultyDirectory) -> None:
    runner, told = Runner(), list[wire.DiskEvent]()
    with HostPool(bytes(16), 1 << 20, 1 << 20, 16) as pool:
        device = Device(0, runner, pool, lambda: open_store(faulty), told.append, lambda words: None)
        device.tick(0.0)
        wait_until(lambda: any(isinstance(one, wire.DiskFound) and one.last for one in told))
        faulty.inject(Fault(Kind.HUNG, frozenset({"sync"}), times=0))
        for _ in range(10):
            device.sync()
            time.sleep(0.02)
        assert faulty.hanging == 1
        faulty.heal()
        wait_until(lambda: not faulty.hanging and not runner.threads.load().running)
        before = faulty.operations
        device.sync()
        wait_until(lambda: faulty.operations > before)
        assert runner.threads.stop(SECONDS)
