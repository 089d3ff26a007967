"""What a worker does at its start about directories that it cannot use: refuse in one line, or serve without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.disk_faults import READS, Fault, Kind
from support.disk_worker import PER_SEGMENT, check_books, check_on_disk, disk_worker, readable, store_each, write_out
from support.engine_side import EngineSide, wait_until
from support.hanging_mount import HangingMount
from support.worker_disk_faults import DiskFaults


def test_a_file_system_that_hangs_holds_up_no_start_and_is_used_once_it_answers(tmp_path: Path) -> None:
    hangs, works = tmp_path / "hangs", tmp_path / "works"
    hangs.mkdir()
    works.mkdir()
    mount = HangingMount(hangs, tmp_path)
    with (
        disk_worker(hangs, works, program=mount.program, disk_patience="1s") as worker,
        EngineSide(worker.socket) as engine,
    ):
        engine.wait_attached()
        assert worker.terminate() == 0, "it ends, whatever hangs"
        worker.start()
        engine.wait_attached()
        wait_until(lambda: "does not answer" in worker.ready()[1].get(f"disk {hangs}", ""), "it is told")
        assert worker.ready()[0] and f"disk {works}" not in worker.ready()[1]
        assert worker.metric("disk_devices_left_alone") == 1
        store_each(engine, range(10))
        wait_until(lambda: worker.metric("disk_copies") == 10, "the other one is written to")
        mount.heal()
        wait_until(
            lambda: worker.ready()[1].keys() <= {"leader", "etcd"},
            "nothing is degraded",
        )
        assert (hangs / "lock").exists()
        assert worker.log.count("disk directory is not open") <= 2


def test_one_directory_by_two_names_is_refused(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    with pytest.raises(RuntimeError, match=r"is the same directory as .*/(real|link)\n"):
        disk_worker(real, link).start()


def test_a_segment_that_cannot_be_read_at_start_keeps_its_room_and_is_read_later(tmp_path: Path) -> None:
    chunks, first = range(100), f"{0:016x}.segment"
    faults = DiskFaults({tmp_path: [Fault(Kind.EIO, READS, times=0, name=first)]})
    with disk_worker(tmp_path) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        write_out(engine, worker, chunks)
        files = len(list(tmp_path.glob("*.segment")))
        worker.kill()
    with disk_worker(tmp_path, program=faults.program) as worker, EngineSide(worker.socket) as engine:
        engine.wait_attached()
        told = f"{first} cannot be read and is tried again"
        wait_until(lambda: told in worker.ready()[1].get(f"disk {tmp_path}", ""), "it is told")
        assert worker.metric("disk_devices_left_alone") == 0
        check_on_disk(worker, [tmp_path], len(chunks) - PER_SEGMENT)
        assert len(readable(engine, chunks)) == len(chunks) - PER_SEGMENT
        faults.heal(tmp_path)
        wait_until(lambda: worker.metric("disk_copies") == len(chunks), "it is read")
        wait_until(lambda: worker.ready()[1].keys() <= {"leader", "etcd"}, "nothing is degraded")
        assert readable(engine, chunks) == set(chunks)
        assert len(list(tmp_path.glob("*.segment"))) == files
        check_books(worker)
