"""The worker's own disk side on a real host pool: its threads, its store, its event loop. Only the core is left out:
its part, what to write when, is played here at the depths that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable

from blockyard.common.config import WorkerConfig, load_worker
from blockyard.common.slot_table import SlotRecord, SlotState
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.directories import Directories
from blockyard.worker.core.disk.operations import Operations
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.disk.claims import Claims
from blockyard.worker.disk.format.names import segment_name
from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.side import DiskSide, claimed, disk_settings
from blockyard.worker.disk_watch import DiskWatch
from blockyard.worker.health import Health
from blockyard.worker.pool import HostPool
from disks.workload import READERS, SLOTS, Pass, Workload

_ANSWER_SECONDS = 60.0

Make = Callable[[int], wire.DiskInstruction]


class Tier:
    """Made by `running`. The first half of the slots is written from, the other one is read into, one chunk in each."""

    def __init__(self, work: Workload, pool: HostPool, config: WorkerConfig, claims: Claims) -> None:
        self._work = work
        self._pool = pool
        self._shape = work.shape
        self._limits = DiskSettings()
        self._answers: asyncio.Queue[wire.DiskEvent] = asyncio.Queue()
        self._extents: list[Extent] = []
        self._free = list(range(SLOTS // 2, SLOTS))
        self._read_into: dict[int, int] = {}
        directories = Directories(disk_settings(config).directories).all
        watch = DiskWatch(directories, Operations(), Health())
        self._side = DiskSide(config, claims, pool, watch, self._answers.put_nowait)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, work: Workload, segment_bytes: int) -> AsyncIterator[Tier]:
        """With its directory open."""
        config = _config(work, segment_bytes)
        with _pool(work.shape.stride, work.chunk_bytes) as pool, claimed(config) as claims:
            tier = cls(work, pool, config, claims)
            with tier._side.threads():
                running = asyncio.create_task(tier._side.run())
                async with asyncio.timeout(_ANSWER_SECONDS):
                    while not isinstance(found := await tier._answers.get(), wire.DiskFound) or not found.last:
                        pass
                yield tier
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running

    async def write(self) -> Pass:
        """Spill every chunk."""
        answers, done = await self._timed(self._write, self._limits.max_writes)
        written = [answer for answer in answers if isinstance(answer, wire.DiskWritten)]
        self._extents = [answer.extent for answer in sorted(written, key=lambda answer: answer.op)]
        return done

    async def read(self) -> Pass:
        """Load every chunk, in the order in which it was spilled; each is verified."""
        return (await self._timed(self._read, self._limits.max_reads))[1]

    def places(self) -> list[tuple[str, int, list[memoryview]]]:
        """Of every chunk that was spilled: its file, its offset there, and the slot that it might be read into."""
        stride = self._shape.stride
        slots = (SLOTS // 2 + number % (SLOTS // 2) for number in range(len(self._extents)))
        return [
            (str(self._work.folder / segment_name(one.segment)), one.offset, self._pool.areas(slot * stride, 1, stride))
            for one, slot in zip(self._extents, slots, strict=True)
        ]

    async def clear(self) -> None:
        """Give all segments back."""
        segments = sorted({extent.segment for extent in self._extents})
        await self._all((wire.ReclaimSegment(number, 0, number) for number in segments), 1)

    def _write(self, number: int) -> wire.DiskInstruction:
        slot = number % (SLOTS // 2)
        return wire.WriteExtent(number, 0, number.to_bytes(32, "big"), self._shape, slot, 1, slot * self._shape.stride)

    def _read(self, number: int) -> wire.DiskInstruction:
        slot = self._read_into[number] = self._free.pop()
        return wire.ReadExtent(number, 0, self._extents[number], slot, 1, slot * self._shape.stride)

    async def _timed(self, make: Make, depth: int) -> tuple[list[wire.DiskEvent], Pass]:
        cpu, wall = time.process_time(), time.perf_counter()
        answers = await self._all((make(number) for number in range(self._work.chunks)), depth)
        return answers, Pass(time.perf_counter() - wall, time.process_time() - cpu)

    async def _all(self, instructions: Iterable[wire.DiskInstruction], depth: int) -> list[wire.DiskEvent]:
        """Carry all of them out, at most `depth` at a time."""
        rest, under_way, answers = iter(instructions), 0, list[wire.DiskEvent]()
        async with asyncio.timeout(_ANSWER_SECONDS):
            while True:
                while under_way < depth and (one := next(rest, None)) is not None:
                    self._side.execute(one)
                    under_way += 1
                if not under_way:
                    return answers
                answer = await self._answers.get()
                if isinstance(answer, wire.DiskFailed):
                    raise SystemExit(f"an operation failed: {answer.reason}, {answer.detail}")
                if isinstance(answer, wire.DiskRead):
                    self._free.append(self._read_into.pop(answer.op))
                answers.append(answer)
                under_way -= 1


def _config(work: Workload, segment_bytes: int) -> WorkerConfig:
    return load_worker(
        {
            "disk": [f"{work.folder}:{4 * work.total_bytes + 4 * segment_bytes}B"],
            "disk_segment": f"{segment_bytes}B",
            "disk_floor": "0B",
            "disk_threads": str(READERS),
            "insecure": "true",
        },
        None,
    )


def _pool(stride: int, chunk_bytes: int) -> HostPool:
    """A host pool whose slots hold one chunk each, with checksums in the table."""
    pool = HostPool(bytes(16), SLOTS * stride, stride, SLOTS)
    for slot in range(SLOTS):
        offset = slot * stride
        pool.memory.view[offset : offset + stride] = os.urandom(stride)
        sums = pool.checksums(offset, 1, stride, chunk_bytes)
        pool.write_slot(
            slot, SlotRecord(1, SlotState.READY, 1, offset, stride, stride, chunk_bytes, 1, bytes(32), sums)
        )
    return pool
