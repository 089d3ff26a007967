"""A worker with real directories, an engine that fills them, and what can be seen of both from outside.

Owns sizes that go together: chunks of 32 KiB, each 36 KiB on disk, and segments in which a round number of them fits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.scheduler_client import Grant
from support.engine_side import EngineSide, key_of, states, wait_until
from support.worker_books import imbalances
from support.worker_process import WorkerProcess

MIB = 1 << 20
CHUNK_ON_DISK = 36 << 10
SEGMENT = 2 * MIB
PER_SEGMENT = (SEGMENT - 4096) // CHUNK_ON_DISK

# 64 slots.
SMALL_POOL = {"host_pool": "2MiB", "slab_size": "1MiB", "min_slot": "32KiB"}

_BLOCK = 512
_AT_ONCE = 16


def disk_worker(*folders: Path, size: str = "64MiB", program: str = "", **settings: str) -> WorkerProcess:
    """Each folder may take `size`."""
    disk = ",".join(f"{folder}:{size}" for folder in folders)
    # On a machine that is busy with other things an operation takes long, and its device does not hang.
    usual = SMALL_POOL | {"disk_segment": "2MiB", "disk_floor": "0B", "disk_patience": "60s"}
    return WorkerProcess(program=program, disk=disk, **(usual | settings))


def du(folder: Path) -> int:
    """What `du` says. Looked at again while files come and go: not both a file and what took its place count."""
    while True:
        before = sorted(folder.iterdir())
        try:
            total = sum(path.stat().st_blocks for path in [folder, *before]) * _BLOCK
        except FileNotFoundError:
            continue
        if sorted(folder.iterdir()) == before:
            return total


def store_each(engine: EngineSide, numbers: Iterable[int]) -> None:
    """Each chunk is stored by itself, with what belongs to its key."""
    for number in numbers:
        engine.write(0, key_of(number))
        # A machine that is busy with other things may let an answer come late.
        while (result := engine.store([key_of(number)])).states == [CopyState.DETACHED]:
            engine.wait_attached()
        assert result.states in ([CopyState.OK], [CopyState.DUPLICATE]), result


def write_out(engine: EngineSide, worker: WorkerProcess, numbers: Sequence[int]) -> None:
    """Stored no faster than they are written, so that all come to disk."""
    before = worker.counted("disk_writes_completed_total")
    for start in range(0, len(numbers), 20):
        store_each(engine, numbers[start : start + 20])
        wait_until(lambda: worker.metric("disk_spill_backlog") == 0, "all chunks are being written")
    wanted = before + len(numbers)
    wait_until(lambda: worker.metric("disk_writes_completed_total") == wanted, f"{wanted} chunks are written")


def comes_back(engine: EngineSide, number: int) -> bool:
    """Whether a chunk is a hit; it must be what was stored then."""
    return readable(engine, [number]) == {number}


def answer(engine: EngineSide, number: int, wait: float = 0.5) -> KeyState:
    """What the worker says of a chunk; its pin is given back."""
    grant = engine.ask([key_of(number)], wait=wait)
    engine.scheduler.release(grant)
    return states(grant)[0]


def readable(engine: EngineSide, numbers: Collection[int]) -> set[int]:
    """Those of these chunks that the worker has; each of them is loaded, and must be what was stored."""
    found: set[int] = set()
    wanted = sorted(numbers)
    for start in range(0, len(wanted), _AT_ONCE):
        found |= _readable(engine, wanted[start : start + _AT_ONCE])
    return found


def _readable(engine: EngineSide, numbers: list[int]) -> set[int]:
    while True:
        grant = _ask_until_read(engine, [key_of(number) for number in numbers])
        hits = [number for number, state in zip(numbers, states(grant), strict=True) if state is KeyState.HIT]
        if not hits or _loaded(engine, hits, grant):
            engine.scheduler.release(grant)
            return set(hits)
        engine.wait_attached()


def _loaded(engine: EngineSide, hits: list[int], grant: Grant) -> bool:
    """False if the engine was detached meanwhile; then nothing is known."""
    engine.zero()
    engine.submit_load(
        [key_of(number) for number in hits], [engine.chunk(index) for index in range(len(hits))], grant.number
    )
    result = engine.result()
    if CopyState.DETACHED in result.states:
        return False
    assert not any(result.states), f"hits are not loaded: {result}"
    for index, number in enumerate(hits):
        assert engine.holds(index, key_of(number)), f"chunk {number} is not what was stored"
    return True


def _ask_until_read(engine: EngineSide, keys: list[bytes]) -> Grant:
    """Asked again as long as something was not read in time."""
    grants: list[Grant] = []

    def all_read() -> bool:
        grants.append(engine.ask(keys, wait=0.5, prefix=False))
        pending = not {KeyState.DEADLINE, KeyState.BEING_FILLED}.isdisjoint(states(grants[-1]))
        if pending:
            engine.scheduler.release(grants[-1])
        return not pending

    wait_until(all_read, "all that can be read is read")
    return grants[-1]


def check_books(worker: WorkerProcess) -> None:
    """The worker's own view of its books, and the equalities of its metrics."""
    status, body = worker.get("/debug/invariants")
    assert (status, json.loads(body)) == (200, {"broken": None})
    assert imbalances(worker) == []


def check_on_disk(worker: WorkerProcess, folders: Sequence[Path], copies: int) -> None:
    """What the worker counts is what lies there, and what can be read of it."""
    files = [file for folder in folders for file in folder.glob("*.segment")]
    found = {name: worker.metric(f"disk_{name}") for name in ("copies", "live_bytes", "file_bytes")}
    sizes = sum(file.stat().st_size for file in files)
    assert found == {"copies": copies, "live_bytes": copies * CHUNK_ON_DISK, "file_bytes": sizes}
