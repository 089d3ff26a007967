"""All directories of a worker: their locks, threads and clocks. Owns who runs what where; decides nothing.

What threads answer is handed to the event loop, where the core lives. A thread that hangs in a system call is left
behind at the end: its process must not wait for a broken device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator

from blockyard.common.config import DiskSpec, SettingError, WorkerConfig
from blockyard.common.logs import fields
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.settings import DirectorySettings, DiskSettings
from blockyard.worker.disk.device import Answer, Device, SlotMemory
from blockyard.worker.disk.ownership import DirectoryOwned, Ownership
from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.segments import SegmentStore, Started
from blockyard.worker.disk.settings import StoreSettings
from blockyard.worker.disk.threads import IoClass, IoThreads, Limits
from blockyard.worker.health import Health

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_LAST_SECONDS = 5.0


class DiskSide:
    """Run `run()` beside the core; `execute` carries out what it says."""

    def __init__(
        self,
        config: WorkerConfig,
        memory: SlotMemory,
        health: Health,
        feed: Callable[[wire.DiskEvent], None],
    ) -> None:
        self._config = config
        self._health = health
        self._runners = [_Threads(f"disk-{number}", config) for number in range(len(config.disk))]
        self._devices = [
            Device(
                number,
                self._runners[number],
                memory,
                lambda spec=spec: _open(spec, config),  # type: ignore[misc]
                feed,
                lambda words, spec=spec: self._trouble(spec, words),  # type: ignore[misc]
            )
            for number, spec in enumerate(config.disk)
        ]

    def execute(self, one: wire.DiskInstruction) -> None:
        number = one.directory
        self._devices[number].execute(one)

    async def run(self) -> None:
        """Open the directories, sync them now and then, and give up what waits too long, until cancelled."""
        synced = time.monotonic()
        while self._devices:
            now = time.monotonic()
            for device, threads in zip(self._devices, self._runners, strict=True):
                device.tick(now)
                threads.expire()
            if now - synced >= self._config.disk_sync:
                synced = now
                for device in self._devices:
                    device.sync()
            await asyncio.sleep(_TICK_SECONDS)

    @contextlib.contextmanager
    def threads(self) -> Iterator[None]:
        """None of them touches the pool after this ends, but those that hang in the kernel."""
        try:
            yield
        finally:
            for threads, device in zip(self._runners, self._devices, strict=True):
                if threads.stop(_LAST_SECONDS) and device.store is not None:
                    with contextlib.suppress(OSError):
                        device.store.close()

    def _trouble(self, spec: DiskSpec, words: str) -> None:
        part = f"disk {spec.path}"
        if words:
            self._health.ill(part, words)
            _log.error("disk directory is not used as it should be", extra=fields(path=spec.path, reason=words))
        else:
            self._health.well(part)


@contextlib.contextmanager
def owned(config: WorkerConfig) -> Iterator[None]:
    """This process alone uses the directories until the block ends. Raises SettingError naming who does already."""
    with contextlib.ExitStack() as held:
        for spec in config.disk:
            try:
                lock = Ownership(spec.path, f"worker {config.node_id} (pid {os.getpid()})")
            except DirectoryOwned as error:
                raise SettingError("disk", str(spec), str(error)) from None
            except OSError as error:
                raise SettingError("disk", str(spec), f"cannot be locked: {error.strerror}") from None
            held.callback(lock.close)
        yield


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


def store_settings(spec: DiskSpec, config: WorkerConfig) -> StoreSettings:
    """What a directory's store works with. Raises OSError where the file system does not answer."""
    floor = config.disk_floor.of(shutil.disk_usage(spec.path).total)
    return StoreSettings(spec.capacity, floor, config.disk_segment)


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


def _open(spec: DiskSpec, config: WorkerConfig) -> tuple[SegmentStore, Started]:
    directory = RealDirectory(spec.path, direct=probe(spec.path).direct)
    return SegmentStore.open(directory, store_settings(spec, config))
