"""`blockyard fsck` beside a real worker: refused while it runs; after a repair it finds all that is left."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine_side import EngineSide, key_of, wait_until
from support.namespaces import APART, require
from support.worker_process import WorkerProcess

CHUNKS = 30
POOL = {"host_pool": "1MiB", "slab_size": "1MiB", "min_slot": "64KiB", "disk_segment": "4MiB", "disk_floor": "0B"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    yield disk


def command(folder: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "blockyard.cli.main", "fsck", str(folder), *flags]


def fsck(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *flags), capture_output=True, text=True, timeout=60, check=False)


def write_chunks(engine: EngineSide, worker: WorkerProcess) -> None:
    """No faster than they are written."""
    for number in range(CHUNKS):
        engine.write(0, key_of(number))
        engine.store([key_of(number)])
        wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "the chunk is being written")
    wait_until(lambda: worker.metric("disk_writes_completed_total") == CHUNKS, "all chunks on disk")


def comes_back(engine: EngineSide, number: int) -> bool:
    engine.zero()
    engine.load([key_of(number)])
    return engine.holds(0, key_of(number))


def listed(folder: Path) -> list[list[str]]:
    lines = fsck(folder, "--list").stdout.splitlines()
    return [line.split() for line in lines if len(line.split()[0]) == 64]


def test_a_worker_finds_all_that_a_repair_left(folder: Path) -> None:
    with WorkerProcess(disk=f"{folder}:64MiB", **POOL) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        write_chunks(engine, worker)
        refused = fsck(folder, "--repair")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"blockyard: disk directory {folder} is in use by worker test-node (pid ")
        assert refused.stderr.count("\n") == 1

        worker.kill()
        assert fsck(folder).returncode == 0
        extents = listed(folder)
        assert {row[0] for row in extents} == {key_of(number).hex() for number in range(CHUNKS)}
        spoilt = extents[4]
        with open(folder / f"{spoilt[3]}.segment", "r+b") as file:
            file.seek(int(spoilt[4]) + 4096 + 100)
            file.write(b"spoilt")
        repaired = fsck(folder, "--repair")
        assert repaired.returncode == 1 and ": dropped" in repaired.stdout
        assert fsck(folder).returncode == 0

        worker.start()
        wait_until(lambda: worker.metric("disk_copies") == CHUNKS - 1, "all that is left is known")
        engine.wait_attached()
        left = [number for number in range(CHUNKS) if key_of(number).hex() != spoilt[0]]
        assert all(comes_back(engine, number) for number in left)
        assert not engine.ask([key_of(number) for number in range(CHUNKS) if number not in left], wait=0.5).number


def test_a_directory_that_is_mounted_read_only_can_be_checked(folder: Path) -> None:
    apart = require(*APART)
    (folder / "lock").touch()
    (folder / "0000000000000000.segment").write_bytes(bytes(8192))
    (folder / "0000000000000000.log").write_bytes(bytes(8192))
    here = shlex.quote(str(folder))
    mounted = f"mount --bind {here} {here} && mount -o remount,bind,ro {here} && exec "
    for flags, code in (((), 1), (("--repair",), 2)):
        line = mounted + shlex.join(command(folder, *flags))
        found = subprocess.run([*apart, "sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == code, found.stderr
    assert "cannot be worked on: Read-only file system" in found.stderr
