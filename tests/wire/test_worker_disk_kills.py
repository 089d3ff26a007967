"""A worker is killed again and again under load: what it finds on its disk is right, counted, and fits."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from blockyard.engine.detached import Detached
from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.segments import SegmentStore
from blockyard.worker.disk.settings import StoreSettings
from support.disk_worker import (
    MIB,
    PER_SEGMENT,
    SEGMENT,
    check_books,
    check_on_disk,
    disk_worker,
    du,
    readable,
    store_each,
)
from support.engine_side import EngineSide, key_of, wait_until
from support.worker_process import WorkerProcess

CAP = 13 * MIB
FRESH = 4


class Victim:
    """One worker over many lives, and every chunk that may be on its disk."""

    def __init__(self, folder: Path, worker: WorkerProcess, engine: EngineSide, seed: int) -> None:
        self._folder = folder
        self._worker = worker
        self._engine = engine
        self._draw = random.Random(seed)
        self._maybe: set[int] = set()
        self._next = 0
        self._copies = 0.0
        self.most = 0

    @property
    def copies(self) -> int:
        """How many are on disk, after `recover`."""
        return len(self._maybe)

    def live(self) -> None:
        """Under load until the kill."""
        self._copies = 0
        kill = threading.Timer(self._draw.uniform(0.02, 0.6), self._kill, [self._draw.random() < 0.5])
        kill.start()
        while self._turn():
            self.most = max(self.most, du(self._folder))
        kill.join()
        self._worker.wait()

    def _kill(self, look: bool) -> None:
        """Half the time something is known of the moment before."""
        if look:
            self._copies = self._worker.metric("disk_copies")
        os.kill(self._worker.pid, signal.SIGKILL)

    def _turn(self) -> bool:
        """Store and load a few; False once the worker is gone."""
        engine = self._engine
        try:
            for number in range(self._next, self._next + FRESH):
                self._next = number + 1
                self._maybe.add(number)
                engine.write(0, key_of(number))
                engine.store([key_of(number)])
            return self._load(self._draw.sample(sorted(self._maybe), FRESH))
        except Detached:
            return False

    def _load(self, numbers: list[int]) -> bool:
        engine, keys = self._engine, [key_of(number) for number in numbers]
        seq = engine.scheduler.acquire("turn", [engine.run(keys)], 0.2)
        grant = None
        while seq is not None and grant is None:
            grant = engine.scheduler.grant(seq, 0.05)
        if grant is None:
            return False
        hits = keys[: next((i for i, state in enumerate(grant.states) if state), len(keys))]
        engine.zero()
        if hits:
            engine.submit_load(hits, [engine.chunk(index) for index in range(len(hits))], grant.number)
            states = engine.result().states
            for index, key in enumerate(hits):
                assert states[index] or engine.holds(index, key), f"wrong bytes under {key.hex()}"
        engine.scheduler.release(grant)
        return True

    def recover(self) -> None:
        """All that the next life finds is right, counted, and within the cap."""
        worker, engine = self._worker, self._engine
        worker.start()
        engine.wait_attached()
        number, self._next = self._next, self._next + 1
        self._maybe.add(number)

        def written() -> bool:
            store_each(engine, [number])
            return worker.metric("disk_writes_completed_total") > 0

        wait_until(written, "it writes, which it does only when it knows everything that was left")
        found = worker.metric("disk_copies") + worker.counted("disk_evictions_total")
        # A segment may just have been on its way out.
        assert found >= self._copies - PER_SEGMENT
        while True:
            given_up = worker.counted("disk_evictions_total")
            self._maybe = readable(engine, self._maybe)
            if worker.counted("disk_evictions_total") == given_up:
                break
        check_on_disk(worker, [self._folder], len(self._maybe))
        check_books(worker)
        self.most = max(self.most, du(self._folder))


def kill_again_and_again(folder: Path, kills: int) -> None:
    with disk_worker(folder, size=f"{CAP}B") as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        victim = Victim(folder, worker, engine, seed=kills)
        for _ in range(kills):
            victim.live()
            victim.recover()
        assert victim.copies > 0 and victim.most <= CAP
        assert worker.terminate() == 0
        check_accounting(folder, victim.copies)


def check_accounting(folder: Path, copies: int) -> None:
    """A store counts what `du` does, from its first moment, and nothing is left to be looked for."""
    store, started = SegmentStore.open(
        RealDirectory(folder, direct=probe(folder).direct), StoreSettings(CAP, 0, SEGMENT)
    )
    assert store.used_bytes == du(folder) <= CAP
    assert (started.to_scan, started.troubles) == ([], [])
    assert len(started.extents) == copies


def test_10_kills_under_load(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 10)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_300_kills_under_load(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 300)
