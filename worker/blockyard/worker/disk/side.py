"""All directories of a worker: their threads and clocks. Owns who runs what where; decides nothing.

What threads answer is handed to the event loop, where the core lives. A thread that hangs in a system call is left
behind at the end: its process must not wait for a broken device.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

from blockyard.common.config import DiskSpec, WorkerConfig
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.settings import DirectorySettings, DiskSettings
from blockyard.worker.disk.claims import Claims
from blockyard.worker.disk.device import Device, SlotMemory
from blockyard.worker.disk.io import Space
from blockyard.worker.disk.lookout import Lookout
from blockyard.worker.disk.opening import Answer
from blockyard.worker.disk.own_thread import on_own_thread
from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.segments import SegmentStore, Started
from blockyard.worker.disk.settings import StoreSettings
from blockyard.worker.disk.threads import IoClass, IoThreads, Limits
from blockyard.worker.disk_watch import DiskWatch

_TICK_SECONDS = 0.1
_LAST_SECONDS = 5.0


class DiskSide:
    """Run `run()` beside the core; `execute` carries out what it says."""

    def __init__(
        self,
        config: WorkerConfig,
        claims: Claims,
        memory: SlotMemory,
        watch: DiskWatch,
        feed: Callable[[wire.DiskEvent], None],
    ) -> None:
        self._config = config
        self._watch = watch
        self._feed = feed
        self._runners = [_Threads(f"disk-{number}", config) for number in range(len(config.disk))]
        self._devices = [
            Device(
                number,
                self._runners[number],
                memory,
                partial(_open, spec, config, claims),
                partial(self._ended, number),
                partial(self._trouble, number),
            )
            for number, spec in enumerate(config.disk)
        ]

        self._lookouts = [
            Lookout(
                self._runners[number],
                partial(_ensure, spec, claims),
                partial(_space, spec),
                config.disk_floor.of,
                partial(watch.seen, number),
            )
            for number, spec in enumerate(config.disk)
        ]

    def execute(self, one: wire.DiskInstruction) -> None:
        number = one.directory
        self._devices[number].execute(one)

    async def run(self) -> None:
        """Open the directories, sync and look at them now and then, give up what waits too long, until cancelled."""
        synced = time.monotonic()
        while self._devices:
            now = time.monotonic()
            for device, threads in zip(self._devices, self._runners, strict=True):
                device.tick(now)
                threads.expire()
            if now - synced >= self._config.disk_sync:
                synced = now
                for device, lookout in zip(self._devices, self._lookouts, strict=True):
                    device.sync()
                    if device.store is not None:
                        lookout.look()
            await asyncio.sleep(_TICK_SECONDS)

    @contextlib.contextmanager
    def threads(self) -> Iterator[None]:
        """None of them touches the pool after this ends, but those that hang in the kernel."""
        try:
            yield
        finally:
            for threads, device in zip(self._runners, self._devices, strict=True):
                if threads.stop(_LAST_SECONDS) and device.store is not None:
                    with contextlib.suppress(OSError, TimeoutError):
                        on_own_thread("disk end", device.store.close).result(_LAST_SECONDS)

    def _ended(self, number: int, event: wire.DiskEvent) -> None:
        if isinstance(event, wire.DiskFailed) and event.reason in ("io", "full"):
            self._watch.failed(number, event.detail)
        self._feed(event)

    def _trouble(self, number: int, words: str) -> None:
        self._watch.trouble(number, words, is_open=self._devices[number].store is not None)


@contextlib.contextmanager
def claimed(config: WorkerConfig) -> Iterator[Claims]:
    """This process alone uses the directories until the block ends. Raises SettingError for one that it may not use;
    a device that hangs or fails keeps nobody from starting.
    """
    claims = Claims(config.disk, config.disk_floor, f"worker {config.node_id} (pid {os.getpid()})")
    claims.begin(config.disk_patience)
    try:
        yield claims
    finally:
        claims.close()


class _Threads:
    """I/O threads whose answers come on the event loop that made them."""

    def __init__(self, name: str, config: WorkerConfig) -> None:
        limits = Limits(config.disk_threads, max(1, config.disk_threads // 2), hung_after=config.disk_patience)
        self._threads = IoThreads(name, limits, time.monotonic)
        self._loop = asyncio.get_running_loop()
        self._patience = config.disk_patience

    def submit(self, kind: IoClass, size: int, work: Callable[[], object], answer: Answer) -> bool:
        def on_loop(result: object) -> None:
            # The loop may have ended by the time a hanging call returns.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(answer, result)

        deadline = time.monotonic() + self._patience
        return self._threads.submit(kind, work, on_loop, deadline) is not None

    def expire(self) -> None:
        self._threads.expire()

    def stop(self, timeout: float) -> bool:
        return self._threads.stop(timeout)


def disk_settings(config: WorkerConfig) -> DiskSettings:
    """What the core works with."""
    each = [StoreSettings(spec.capacity, 0, config.disk_segment) for spec in config.disk]
    return DiskSettings(
        directories=tuple(
            DirectorySettings(str(spec.path), one.segments, one.segment_bytes)
            for spec, one in zip(config.disk, each, strict=True)
        ),
        admission="second-touch" if config.disk_admission == "second-touch" else "always",
        write_rate=float(config.disk_write_rate),
        patience=config.disk_patience,
    )


def _open(spec: DiskSpec, config: WorkerConfig, claims: Claims) -> tuple[SegmentStore, Started]:
    claim = claims.get(spec)
    settings = StoreSettings(spec.capacity, config.disk_floor.of(claim.total), config.disk_segment)
    directory = RealDirectory(spec.path, direct=probe(spec.path).direct, ensure=claim.lock.ensure)
    return SegmentStore.open(directory, settings)


def _ensure(spec: DiskSpec, claims: Claims) -> None:
    claims.get(spec).lock.ensure()


def _space(spec: DiskSpec) -> Space:
    return RealDirectory(spec.path, direct=False).space()
