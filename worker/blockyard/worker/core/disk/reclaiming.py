"""Makes room on disk: gives one segment back at a time, and moves on what is still of value.

Owns the choice and its steps. A segment is chosen by when it last was of use, since what lies together was written
together; copies that were read back since they were written move on, the most read first and a share at most.

    chosen -> its cold copies dropped, its hot ones moving -> no reader and nothing moving -> file given back
"""

from collections.abc import Callable

from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.disk.directories import Directories, Directory, DiskCopy, Segment
from blockyard.worker.core.disk.operations import Operations
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.core.disk.wire import MoveExtent, ReclaimSegment
from blockyard.worker.core.instructions import Instruction


class Reclaiming:
    """`lost` is called with each copy that is given up."""

    def __init__(
        self,
        settings: DiskSettings,
        counters: Counters,
        directories: Directories,
        operations: Operations,
        emit: Callable[[Instruction], None],
        lost: Callable[[DiskCopy], None],
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._directories = directories
        self._operations = operations
        self._emit = emit
        self._lost = lost

    def pump(self, now: float) -> None:
        """Go on with each crowded directory that may be used."""
        for directory in self._directories.all:
            if not directory.recovered or not directory.breaker.closed:
                continue
            leaving = next((one for one in directory.segments.values() if one.leaving), None)
            if leaving is None and directory.crowded(now):
                leaving = self._choose(directory)
                if leaving is not None:
                    self._empty(leaving, now)
            if leaving is not None:
                self._give_back(leaving, now)

    def _choose(self, directory: Directory) -> Segment | None:
        """The one that was of use least recently, apart from the newest."""
        newest = directory.newest()
        others = [one for one in directory.segments.values() if one is not newest]
        return min(others, key=lambda one: (one.used, one.number), default=None)

    def _empty(self, segment: Segment, now: float) -> None:
        segment.leaving = True
        self._counters.add("blockyard_worker_disk_segments_reclaimed_total")
        budget = int(segment.live_bytes * self._settings.forward_share)
        for copy in sorted(segment.copies.values(), key=lambda one: -one.hits):
            if not copy.hits or copy.length > budget or now < segment.directory.full_until:
                self._lost(copy)
                continue
            budget -= copy.length
            operation = self._operations.start("forward", segment.directory, now, copy=copy)
            self._emit(MoveExtent(operation.number, segment.directory.number, copy.extent))

    def _give_back(self, segment: Segment, now: float) -> None:
        """Once nothing reads it any more, and once only."""
        under_way = (one.segment for one in self._operations.all.values() if one.kind == "reclaim")
        if segment.readers or segment.copies or segment in under_way:
            return
        operation = self._operations.start("reclaim", segment.directory, now, segment=segment)
        self._emit(ReclaimSegment(operation.number, segment.directory.number, segment.number))
