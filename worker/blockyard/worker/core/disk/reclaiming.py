"""Makes room on disk: gives one segment back at a time, and moves on what is still of value.

Owns the choice and its steps. A copy is of value if it was asked for since it came to lie where it is. To give back
costs reading and writing the valued bytes again, and brings the others; what is old has had its time to show value. So
the segment with the most of age x (bytes - valued) / (bytes + valued) goes: a stream of chunks that nobody asks for
goes as it came, and what is asked for stays where it lies, or moves.

What moves is paid for by what is written: `forward_share` of its bytes, which may be saved up. So the disk never writes
more than that in addition, whatever is asked for.

    chosen -> its cold copies dropped, its valued ones moving -> no reader and nothing moving -> file given back
"""

from collections.abc import Callable, Mapping

from blockyard.common.identity import Key
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.disk.directories import Directories, Directory, DiskCopy, Segment
from blockyard.worker.core.disk.operations import Operations
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.core.disk.wire import MoveExtent, ReclaimSegment
from blockyard.worker.core.instructions import Instruction


class Reclaiming:
    """`chunks` are those in memory, by key; `lost` is called with each copy that is given up."""

    def __init__(
        self,
        settings: DiskSettings,
        counters: Counters,
        directories: Directories,
        operations: Operations,
        chunks: Mapping[Key, Chunk],
        emit: Callable[[Instruction], None],
        lost: Callable[[DiskCopy], None],
    ) -> None:
        self._share = settings.forward_share
        self._counters = counters
        self._directories = directories
        self._operations = operations
        self._chunks = chunks
        self._emit = emit
        self._lost = lost
        self._credit = [self._share * one.capacity_bytes for one in settings.directories]
        """By directory: bytes that may move on."""

    def earn(self, directory: Directory, written: int) -> None:
        """A chunk was written: so much more may move on."""
        most = self._share * directory.settings.capacity_bytes
        credit = self._credit[directory.number] + self._share * written
        self._credit[directory.number] = min(most, credit)

    def pump(self, now: float) -> None:
        """Go on with each crowded directory that may be used."""
        for directory in self._directories.all:
            if not directory.recovered or not directory.breaker.closed:
                continue
            leaving = next((one for one in directory.segments.values() if one.leaving), None)
            if leaving is None and directory.crowded(now):
                movable = self._movable(directory, now)
                leaving = self._choose(directory, movable)
                if leaving is not None:
                    self._empty(leaving, movable, now)
            if leaving is not None:
                self._give_back(leaving, now)

    def _movable(self, directory: Directory, now: float) -> int:
        """Bytes that may move on now, and have room to."""
        if now < directory.full_until:
            return 0
        return max(0, min(int(self._credit[directory.number]), directory.room))

    def _choose(self, directory: Directory, movable: int) -> Segment | None:
        """The best to give back of those whose valued bytes can all move on, if there are any; never the newest."""
        newest = directory.newest()
        others = [one for one in directory.segments.values() if one is not newest]
        harmless = [one for one in others if one.valued_bytes <= movable]
        return max(harmless or others, key=lambda one: (_gain(one), -one.number), default=None)

    def _empty(self, segment: Segment, movable: int, now: float) -> None:
        segment.leaving = True
        self._counters.add("blockyard_worker_disk_segments_reclaimed_total")
        for copy in segment.copies.values():
            chunk = self._chunks.get(copy.key)
            if chunk is not None and chunk.size_class is copy.size_class:
                copy.asked(chunk.hit)
        directory = segment.directory
        for copy in sorted(segment.copies.values(), key=lambda one: -one.hit):
            if not copy.hit or copy.length > movable:
                self._lost(copy)
                continue
            movable -= copy.length
            self._credit[directory.number] -= copy.length
            operation = self._operations.start("forward", directory, now, copy=copy)
            self._emit(MoveExtent(operation.number, directory.number, copy.extent))

    def _give_back(self, segment: Segment, now: float) -> None:
        """Once nothing reads it any more, and once only."""
        under_way = (one.segment for one in self._operations.all.values() if one.kind == "reclaim")
        if segment.readers or segment.copies or segment in under_way:
            return
        operation = self._operations.start("reclaim", segment.directory, now, segment=segment)
        self._emit(ReclaimSegment(operation.number, segment.directory.number, segment.number))


def _gain(segment: Segment) -> float:
    """What giving it back brings for what it costs."""
    age = 1 + segment.directory.seq - segment.seq
    return age * (segment.bytes - segment.valued_bytes) / max(1, segment.bytes + segment.valued_bytes)
