"""The disk tier as a machine of its parts: the worker's events go in here, what follows goes out as instructions.

Owns what each completion means for chunk, copy and device. Must never know sessions; who waits for reads is told the
numbers of those that ended.
"""

from collections.abc import Callable

from blockyard.common.identity import Fingerprint, Key
from blockyard.common.messages.states import KeyState
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.directories import Directories, Directory, DiskCopy
from blockyard.worker.core.disk.operations import Operation, Operations
from blockyard.worker.core.disk.promoting import Promoting
from blockyard.worker.core.disk.reclaiming import Reclaiming
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.core.disk.spilling import Spilling
from blockyard.worker.core.disk.tombs import Tombs
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.worlds import World, WorldBook
from blockyard.worker.disk.format.values import Extent

_NO_PARENT = b""


class DiskTier:
    """`read_ended` is called with each read that nobody has to wait for any longer, and whether it did well."""

    def __init__(
        self,
        settings: DiskSettings,
        pool_bytes: int,
        counters: Counters,
        holdings: Holdings,
        worlds: WorldBook,
        emit: Callable[[Instruction], None],
        read_ended: Callable[[int, bool], None],
    ) -> None:
        self.settings = settings
        self._counters = counters
        self._holdings = holdings
        self._worlds = worlds
        self._emit = emit
        self._read_ended = read_ended
        self.directories = Directories(settings.directories)
        self.operations = Operations()
        self._tombs = Tombs()
        self.spilling = Spilling(
            settings, pool_bytes, counters, self.directories, self.operations, holdings.spills, emit
        )
        self.promoting = Promoting(settings, pool_bytes, holdings, self.operations, emit)
        self.reclaiming = Reclaiming(
            settings, counters, self.directories, self.operations, holdings.index, emit, self._give_up
        )

    @property
    def enabled(self) -> bool:
        return bool(self.directories.all)

    def next_deadline(self) -> float | None:
        """When something under way will have hung, or a device is to be probed."""
        probes = [one.breaker.until for one in self.directories.all if one.breaker.state == "open"]
        hang = self.operations.next_deadline(self.settings.patience)
        return min([*probes, *([] if hang is None else [hang])], default=None)

    def tick(self, now: float) -> None:
        """What time asks for, and what may go on."""
        for operation in self.operations.hanging(now, self.settings.patience):
            self._hangs(operation, now)
        for directory in self.directories.all:
            if directory.breaker.due(now):
                directory.breaker.probe()
                probe = self.operations.start("probe", directory, now)
                self._emit(wire.ProbeDirectory(probe.number, directory.number))
        self.pump(now)

    def pump(self, now: float) -> None:
        """Start what may be started."""
        if self.enabled:
            self.spilling.pump(now)
            self.reclaiming.pump(now)

    def abandon(self, chunk: Chunk) -> None:
        """What is being read into this slot is not wanted any more. The slot is out of use until the read ends."""
        number = chunk.read
        self.promoting.ended(chunk)
        self._holdings.abort(chunk)
        self._read_ended(number, False)

    def forget(self, fingerprint: Fingerprint) -> None:
        """Drop every copy of a world, also from what the next start finds."""
        world = self._worlds.get(fingerprint)
        if world is None:
            return
        dropped: dict[int, list[Extent]] = {}
        for size_class in world.classes.values():
            for copy in list(size_class.on_disk.values()):
                dropped.setdefault(copy.segment.directory.number, []).append(copy.extent)
                self._remove(copy)
        for number, extents in dropped.items():
            self._emit(wire.DropExtents(number, extents))

    # -- completions ---------------------------------------------------------------------------------------

    def written(self, now: float, event: wire.DiskWritten) -> None:
        """A chunk has a copy at a place, by a write or a move."""
        operation = self.operations.end(event.op)
        if operation is None:
            return
        self._works(operation.directory)
        if operation.kind == "forward":
            self._moved(operation, event.extent)
        else:
            self._spilt(operation, event.extent)
        self.pump(now)

    def read(self, now: float, event: wire.DiskRead) -> None:
        """A copy is in its slot."""
        operation = self.operations.end(event.op)
        if operation is None or operation.chunk is None or operation.copy is None:
            return
        self._works(operation.directory)
        chunk, copy = operation.chunk, operation.copy
        self._counters.add("blockyard_worker_disk_read_bytes_total", copy.length)
        self._counters.add("blockyard_worker_disk_reads_completed_total")
        if chunk.state is ChunkState.DOOMED:
            self._holdings.use_ended(chunk)
        else:
            copy.asked(self._holdings.step)
            self.promoting.ended(chunk)
            self._holdings.promoted(chunk, event.checksums)
            self._read_ended(operation.number, True)
        self.pump(now)

    def failed(self, now: float, event: wire.DiskFailed) -> None:
        """An operation came to nothing."""
        operation = self.operations.end(event.op)
        if operation is None:
            return
        if event.reason in ("io", "full"):
            self._device_failed(operation.directory, now, event.reason)
        if operation.kind == "write":
            self._write_failed(operation, event.reason)
        elif operation.kind == "read":
            self._read_failed(operation, event.reason)
        elif operation.kind == "forward" and operation.copy is not None:
            self._give_up(operation.copy)
        elif operation.kind == "probe":
            operation.directory.breaker.failed(now, hung=True)
        # What failed is tried again with the next tick: trying at once would be a loop without a pause.

    def reclaimed(self, now: float, event: wire.DiskReclaimed) -> None:
        """A segment's file is gone, and there is room for another."""
        operation = self.operations.end(event.op)
        if operation is None or operation.segment is None:
            return
        self._works(operation.directory)
        operation.directory.full_until = now
        self.directories.forget(operation.segment)
        self.pump(now)

    def probed(self, now: float, event: wire.DiskProbed) -> None:
        """A device works again."""
        operation = self.operations.end(event.op)
        if operation is not None:
            self._works(operation.directory)
            operation.directory.full_until = now
            self.pump(now)

    def found(self, now: float, event: wire.DiskFound) -> None:
        """What an earlier life has left. Of two copies of a chunk the younger stands, or the one told first."""
        directory = self.directories.all[event.directory]
        for number, size in event.segments:
            self.directories.found(directory, number, size)
        for extent in event.extents:
            segment = directory.segments.get(extent.segment)
            if segment is not None and segment.leaving:
                continue
            if self._tombs.buried(extent.shape.fingerprint, extent.key):
                self._emit(wire.DropExtents(directory.number, [extent]))
                continue
            size_class = self._worlds.recovered(extent.shape)
            if size_class is not None and self._is_better(directory, extent, size_class):
                self.directories.add(directory, extent, _NO_PARENT, size_class, self._holdings.step)
                self._holdings.tell(extent.key, size_class)
                chunk = self._holdings.index.get(extent.key)
                if chunk is not None:
                    self._holdings.spills.reconsider([chunk])
        if event.last:
            directory.recovered = True
            if all(one.recovered for one in self.directories.all):
                self._tombs.clear()
            self.pump(now)

    def bury(self, fingerprint: Fingerprint, keys: list[Key]) -> bool:
        """What is found of these from now on does not count; False if that is too much to remember."""
        return all(one.recovered for one in self.directories.all) or self._tombs.bury(fingerprint, keys)

    def drop(self, key: Key) -> None:
        """No copy of this key must be given to anyone any more, or come back with the next start."""
        for size_class in self._worlds.classes():
            copy = size_class.on_disk.get(key)
            if copy is not None:
                self._drop(copy)

    def disown(self, world: World) -> None:
        """Copies whose sizes are not those of the engine that has come are of no use to anyone."""
        for size_class in world.disowned:
            for copy in list(size_class.on_disk.values()):
                self._remove(copy)
        world.disowned.clear()

    def _is_better(self, directory: Directory, extent: Extent, size_class: SizeClass) -> bool:
        """Whether a found copy counts; an older one that it replaces is forgotten."""
        other = size_class.on_disk.get(extent.key)
        if other is None:
            return True
        if other.segment.directory is not directory or other.extent.seq > extent.seq:
            return False
        self.directories.remove(other)
        return True

    # -- what they mean --------------------------------------------------------------------------------------

    def _spilt(self, operation: Operation, extent: Extent) -> None:
        chunk = operation.chunk
        assert chunk is not None
        self.spilling.ended(operation)
        self._counters.add("blockyard_worker_disk_writes_completed_total")
        self._counters.add("blockyard_worker_disk_written_bytes_total", extent.shape.extent_bytes)
        self.reclaiming.earn(operation.directory, extent.shape.extent_bytes)
        if chunk.state is not ChunkState.READY or self._holdings.spills.covered(chunk):
            # It was dropped for a reason meanwhile, or there is a copy, and so this one is.
            self.directories.placed(operation.directory, extent)
            self._emit(wire.DropExtents(operation.directory.number, [extent]))
            self._holdings.use_ended(chunk)
            return
        older = chunk.size_class.on_disk.get(chunk.key)
        if older is not None:
            self.directories.remove(older)
            self._emit(wire.DropExtents(older.segment.directory.number, [older.extent]))
        self.directories.add(operation.directory, extent, chunk.parent, chunk.size_class, self._holdings.step)
        self._holdings.tell(chunk.key, chunk.size_class)
        self._holdings.spills.reconsider([chunk])

    def _write_failed(self, operation: Operation, outcome: str) -> None:
        chunk = operation.chunk
        assert chunk is not None
        self.spilling.ended(operation)
        self._counters.add("blockyard_worker_disk_writes_failed_total", reason=outcome)
        if chunk.state is ChunkState.READY:
            self._holdings.spills.consider(chunk)
        self._holdings.use_ended(chunk)

    def _read_failed(self, operation: Operation, outcome: str) -> None:
        chunk, copy = operation.chunk, operation.copy
        assert chunk is not None and copy is not None
        self._counters.add("blockyard_worker_disk_reads_failed_total", reason=outcome)
        if outcome in ("corrupt", "gone"):
            self._counters.add("blockyard_worker_quarantined_total")
            self._drop(copy)
            self._holdings.ghosts.add(copy.key, KeyState.CORRUPT)
        elif outcome == "io":
            self._unreadable(copy)
        if chunk.state is ChunkState.DOOMED:
            self._holdings.use_ended(chunk)
        else:
            self.abandon(chunk)

    def _unreadable(self, copy: DiskCopy) -> None:
        """The second time it is given up: a place that is broken for good would keep its chunk from a better one."""
        copy.failures += 1
        if copy.failures > 1:
            self._drop(copy)
            self._holdings.ghosts.add(copy.key, KeyState.EVICTED_DISK)

    def _moved(self, operation: Operation, extent: Extent) -> None:
        copy = operation.copy
        assert copy is not None
        self._counters.add("blockyard_worker_disk_moved_bytes_total", extent.shape.extent_bytes)
        if copy.size_class.on_disk.get(copy.key) is copy:
            self.directories.move(copy, extent, self._holdings.step)
        else:
            self.directories.placed(operation.directory, extent)
            self._emit(wire.DropExtents(operation.directory.number, [extent]))

    def _device_failed(self, directory: Directory, now: float, reason: str) -> None:
        if reason == "full":
            directory.full_until = now + self.settings.full_pause
        elif directory.breaker.failed(now):
            self._left_alone("io")

    def _works(self, directory: Directory) -> None:
        """An operation on its device ended well. Copies there may count again."""
        was_closed = directory.breaker.closed
        directory.breaker.succeeded()
        if directory.breaker.closed and not was_closed:
            self._holdings.spills.reconsider(self._holdings.index.values())

    def _left_alone(self, reason: str) -> None:
        """What is in memory and has its copy on a device that is not used now may be written to another one."""
        self._counters.add("blockyard_worker_disk_breaker_opened_total", reason=reason)
        self._holdings.spills.reconsider(self._holdings.index.values())

    def _hangs(self, operation: Operation, now: float) -> None:
        """Nobody waits for it any more; its slot stays out of use until it ends."""
        operation.late = True
        if operation.directory.breaker.failed(now, hung=True):
            self._left_alone("hung")
        if operation.kind == "read" and operation.chunk is not None and operation.chunk.state is ChunkState.FILLING:
            self.abandon(operation.chunk)

    def _give_up(self, copy: DiskCopy) -> None:
        """Its room is needed for something else. If it was asked for and is in memory, it is soon written anew."""
        if copy.size_class.on_disk.get(copy.key) is not copy:
            return
        self._counters.add("blockyard_worker_disk_evictions_total")
        chunk = self._holdings.index.get(copy.key)
        if chunk is None:
            self._holdings.ghosts.add(copy.key, KeyState.EVICTED_DISK)
        else:
            chunk.unwanted = not copy.hit
        self._remove(copy)

    def _drop(self, copy: DiskCopy) -> None:
        """It is of no use, and must not come back with the next start."""
        if copy.size_class.on_disk.get(copy.key) is copy:
            self._remove(copy)
            self._emit(wire.DropExtents(copy.segment.directory.number, [copy.extent]))

    def _remove(self, copy: DiskCopy) -> None:
        self.directories.remove(copy)
        self._holdings.tell(copy.key, copy.size_class)
        chunk = self._holdings.index.get(copy.key)
        if chunk is not None and chunk.checked and chunk.size_class is copy.size_class:
            self._holdings.spills.consider(chunk)
