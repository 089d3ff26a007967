"""Pools beyond 32-bit offsets, and pools that do not fit: by control group, by machine, and never by /dev/shm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState
from blockyard.common.slot_table import SlotState
from support.attach_client import Engine, hello
from support.engine_side import WORLD, EngineSide, key_of, pages
from support.host_pool import OpenedPool
from support.leader_process import wait_for
from support.namespaces import require
from support.worker_books import check_idle, slots_by_key
from support.worker_process import WorkerProcess

MIB, GIB = 1 << 20, 1 << 30
POOL = 5 * GIB
SLOT = MIB
KEYS = [key_of(1), key_of(2)]


def test_the_far_end_of_a_pool_of_5_gib_is_stored_to_and_loaded_from() -> None:
    """All slots before it are reserved and never written, so the pool takes next to no memory here."""
    settings = {"host_pool": "5GiB", "slab_size": "32MiB", "min_slot": "1MiB", "fill_deadline": "10m"}
    tensors = [pages(8, SLOT // 8), pages(8, SLOT // 8)]
    holder = hello(engine="holder", fingerprint=WORLD, groups=[attach.GroupShape(0, 64, SLOT)])
    with (
        WorkerProcess(max_fills_per_engine="100000", **settings) as worker,
        Engine(worker.socket, holder) as reserving,
        EngineSide(worker.socket, tensors, verify="always") as engine,
    ):
        engine.wait_attached()
        others = [key_of(1000 + number) for number in range(POOL // SLOT - len(KEYS))]
        places = reserving.begin_store(others)
        assert set(places.states) == {CopyState.OK}
        assert len({*places.offsets}) == len(others)
        for index, key in enumerate(KEYS):
            engine.write(index, key)
        assert engine.store(KEYS).ok
        worker.wait_metric("checksum_backlog", 0)
        offsets = sorted(offset for offset, _ in slots_by_key(worker, SlotState.READY).values())
        assert offsets == sorted({*range(0, POOL, SLOT)} - {*places.offsets})
        assert offsets[-1] >= 4 * GIB
        engine.zero()
        assert engine.load(KEYS).ok
        assert all(engine.holds(index, key) for index, key in enumerate(KEYS))
        with OpenedPool(worker.pid) as pool:
            for offset in offsets:
                assert not any(pool.bytes_at(offset % (4 * GIB), 4096)) or offset < 4 * GIB, "cut to 32 bits"
        reserving.rank.send(attach.StoreDone(places.job, bytes([CopyState.CANCELLED]) * len(others), 0, 0))
        check_idle(worker)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of this test's own, below the one that it runs in."""
    if (found := _own_group()) is None:
        pytest.skip("control groups cannot be made here")
    yield found
    wait_for(lambda: _removed(found), 10.0, "the group is empty")


def _own_group() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        made = Path("/sys/fs/cgroup") / controllers / path.lstrip("/") / f"blockyard-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        if (made / _limit_file(made)).exists():
            return made
        made.rmdir()
    return None


def _limit_file(group: Path) -> str:
    return "memory.max" if (group / "cgroup.controllers").exists() else "memory.limit_in_bytes"


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def within(group: Path) -> list[str]:
    """Prefix of a command that runs in a group."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]


def test_a_pool_beyond_the_control_group_is_refused_with_the_arithmetic(group: Path) -> None:
    limit = group / _limit_file(group)
    limit.write_text(str(512 * MIB))
    with WorkerProcess(spawn_only=True, prefix=within(group), host_pool="512MiB") as worker:
        worker.spawn()
        assert worker.wait() == 2
        assert worker.log == (
            "blockyard: host_pool = 512MiB: 512MiB and 256MiB for the worker itself make 768MiB, "
            f"but the limit in {limit} is 512MiB; at most 256MiB would fit\n"
        )
    with WorkerProcess(prefix=within(group), host_pool="128MiB") as worker:
        assert worker.get("/readyz")[0] == 200


def test_a_pool_beyond_the_machine_is_refused_with_the_arithmetic() -> None:
    with WorkerProcess(spawn_only=True, host_pool="4TiB", slab_size="16GiB") as worker:
        worker.spawn()
        assert worker.wait() == 2
        assert worker.log.startswith("blockyard: host_pool = 4TiB: 4TiB and 256MiB for the worker itself make ")
        assert worker.log.endswith("would fit\n") and worker.log.count("\n") == 1


def test_a_small_dev_shm_does_not_matter() -> None:
    """The pool has no name there, and its pages do not count against it."""
    tiny = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    prefix = ["unshare", "--mount", "--", "sh", "-c", tiny, "sh"]
    require(*prefix)
    with (
        WorkerProcess(prefix=prefix, host_pool="64MiB", prefault="true") as worker,
        EngineSide(worker.socket, verify="always") as engine,
    ):
        engine.wait_attached()
        for index, key in enumerate(KEYS):
            engine.write(index, key)
        assert engine.store(KEYS).ok
        engine.zero()
        assert engine.load(KEYS).ok
        assert all(engine.holds(index, key) for index, key in enumerate(KEYS))
        assert worker.ready() == (True, {})
