"""What the tier is compared with: fio, and threads that do nothing but pwrite and pread. The same folder, block size,
depth, order and O_DIRECT; files are preallocated, and nothing is verified. A third one reads the tier's own files.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from disks.tier import Tier
from disks.workload import READERS, SLOTS, WRITERS, Pass, Workload

_FIO_SECONDS = 120

_Item = TypeVar("_Item")


class Fio:
    """One job that keeps as many operations under way as the others have threads, in order."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._file = work.folder / "fio.bin"

    async def write(self) -> Pass:
        return await self._run("write", WRITERS)

    async def read(self) -> Pass:
        return await self._run("read", READERS)

    async def clear(self) -> None:
        self._file.unlink()

    async def _run(self, kind: str, depth: int) -> Pass:
        work = self._work
        process = await asyncio.create_subprocess_exec(
            *("fio", "--name=bench", f"--filename={self._file}", f"--rw={kind}", f"--bs={work.extent_bytes}"),
            *(f"--size={work.total_bytes}", "--fallocate=posix", "--invalidate=1", f"--direct={int(work.direct)}"),
            *("--ioengine=libaio", f"--iodepth={depth}", "--output-format=json"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), _FIO_SECONDS)
        (job,) = json.loads(out)["jobs"]
        done = job[kind]
        if job["error"] or done["io_bytes"] != work.total_bytes:
            raise SystemExit(f"fio failed: error {job['error']}, {done['io_bytes']} of {work.total_bytes} bytes")
        cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
        return Pass(work.total_bytes / done["bw_bytes"], cpu)


class Threads:
    """The next block goes to the next thread that is free."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._file = work.folder / "threads.bin"
        self._flags = os.O_RDWR | (os.O_DIRECT if work.direct else 0)
        self._memory = aligned(SLOTS // 2 * work.extent_bytes)
        self._memory[:] = os.urandom(len(self._memory))

    async def write(self) -> Pass:
        fd = os.open(self._file, self._flags | os.O_CREAT | os.O_EXCL, 0o600)
        os.posix_fallocate(fd, 0, self._work.total_bytes)
        return await self._run(fd, WRITERS, lambda buffer, offset: os.pwritev(fd, [buffer], offset))

    async def read(self) -> Pass:
        fd = os.open(self._file, self._flags)
        return await self._run(fd, READERS, lambda buffer, offset: os.preadv(fd, [buffer], offset))

    async def clear(self) -> None:
        self._file.unlink()

    async def _run(self, fd: int, threads: int, act: Callable[[memoryview, int], int]) -> Pass:
        work, size = self._work, self._work.extent_bytes

        def block(offset: int) -> None:
            place = offset % len(self._memory)
            if act(self._memory[place : place + size], offset) != size:
                raise OSError(f"cut short at {offset}")

        done = in_threads(threads, iter(range(0, work.total_bytes, size)), block)
        os.close(fd)
        return done


class Files:
    """What the tier has written, read again from its files into its memory by threads that do nothing else: what its
    verification, its threads and its event loop cost is the rest.
    """

    def __init__(self, tier: Tier, work: Workload) -> None:
        self._tier = tier
        self._flags = os.O_RDONLY | (os.O_DIRECT if work.direct else 0)

    def read(self) -> Pass:
        headers = threading.local()

        def block(one: tuple[str, int, list[memoryview]]) -> None:
            path, offset, areas = one
            if not hasattr(headers, "page"):
                headers.page = aligned(PAGE)
            if os.preadv(opened[path], [headers.page, *areas], offset) != PAGE + sum(map(len, areas)):
                raise OSError(f"cut short at {offset} of {path}")

        places = self._tier.places()
        opened = {path: os.open(path, self._flags) for path in {path for path, _, _ in places}}
        done = in_threads(READERS, iter(places), block)
        for fd in opened.values():
            os.close(fd)
        return done


def in_threads(threads: int, items: Iterator[_Item], act: Callable[[_Item], None]) -> Pass:
    """The next item goes to the next thread that is free."""

    def share() -> None:
        for item in items:
            act(item)

    running = [threading.Thread(target=share) for _ in range(threads)]
    cpu, wall = time.process_time(), time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return Pass(time.perf_counter() - wall, time.process_time() - cpu)
