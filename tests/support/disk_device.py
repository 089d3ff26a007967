"""Devices under a worker core driven by hand: segment files as numbers, operations that end when a test says so.

Owns where copies lie, as production's segment store would place them, and which operations are under way.
"""

from __future__ import annotations

from typing import Any

from blockyard.common.slot_table import PAGE
from blockyard.worker.core import instructions
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.settings import DirectorySettings, DiskSettings
from blockyard.worker.disk.format.values import NO_SALT, Extent, Shape
from support.worker_core import Node

EXTENT = 2 * PAGE
"""Header and payload of the kit's chunks."""

_FREELY = {"write_rate": 1e12, "promoting_share": 1.0}

Pending = wire.WriteExtent | wire.ReadExtent | wire.MoveExtent | wire.ReclaimSegment | wire.ProbeDirectory


class DiskNode(Node):
    """A node with `directories` devices of `segments` segments, each with room for `per_segment` chunks."""

    def __init__(
        self,
        slots: int = 4,
        directories: int = 1,
        segments: int = 4,
        per_segment: int = 4,
        disk: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        size = per_segment * EXTENT
        each = tuple(DirectorySettings(f"disk{number}", segments, size) for number in range(directories))
        super().__init__(slots, disk=DiskSettings(each, **(_FREELY | (disk or {}))), **settings)
        self.devices = [Device(each[number]) for number in range(directories)]
        self.pending: dict[int, Pending] = {}
        self.dropped: list[Extent] = []
        for number in range(directories):
            self.do(wire.DiskFound(number, [], [], last=True))

    def do(self, event: Any) -> list[instructions.Instruction]:
        out = super().do(event)
        for one in out:
            if isinstance(one, wire.DropExtents):
                self.dropped += one.extents
            elif isinstance(one, Pending):
                assert one.op not in self.pending
                self.pending[one.op] = one
        return out

    def under_way(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.pending.values() if isinstance(one, kind)]

    def end(self, op: int) -> list[instructions.Instruction]:
        """The operation ends well, as far as there is room."""
        return self.do(self.outcome(op))

    def outcome(self, op: int) -> wire.DiskEvent:
        """What an operation comes to that ends now."""
        one = self.pending.pop(op)
        match one:
            case wire.WriteExtent():
                return self._append(op, one.directory, one.key, one.shape)
            case wire.MoveExtent():
                return self._append(op, one.directory, one.extent.key, one.extent.shape)
            case wire.ReadExtent():
                return wire.DiskRead(op, tuple(range(one.extent.shape.areas)))
            case wire.ReclaimSegment():
                self.devices[one.directory].reclaim(one.segment)
                return wire.DiskReclaimed(op)
            case wire.ProbeDirectory():
                return wire.DiskProbed(op)

    def fail(self, op: int, reason: wire.Failure) -> list[instructions.Instruction]:
        return self.do(self.failure(op, reason))

    def failure(self, op: int, reason: wire.Failure) -> wire.DiskEvent:
        del self.pending[op]
        return wire.DiskFailed(op, reason, "as the test wants it")

    def settle(self, kinds: Any = Pending) -> None:
        """Everything of these kinds ends well, and what follows from it."""
        while under_way := self.under_way(kinds):
            self.end(under_way[0].op)

    def found(self, wanted: list[bytes], shape: Shape, directory: int = 0) -> None:
        """An earlier life left these, in segments of their own making."""
        device = self.devices[directory]
        extents = [device.append(key, shape) for key in wanted]
        device.seal()
        self.do(wire.DiskFound(directory, extents, list(device.segments.items()), last=True))

    def _append(self, op: int, directory: int, key: bytes, shape: Shape) -> wire.DiskEvent:
        device = self.devices[directory]
        if not device.has_room(shape):
            return wire.DiskFailed(op, "full", "no segment is free")
        return wire.DiskWritten(op, device.append(key, shape))


class Device:
    """Segments by number, each with where its next extent goes; the last has room until it is full."""

    def __init__(self, settings: DirectorySettings) -> None:
        self.settings = settings
        self.segments: dict[int, int] = {}
        self.files: dict[tuple[int, int], bytes] = {}
        """The key whose bytes lie there."""
        self._last = 0
        self._open = False
        self._seq = 0

    def has_room(self, shape: Shape) -> bool:
        return self._fits(shape) or len(self.segments) < self.settings.segments

    def append(self, key: bytes, shape: Shape) -> Extent:
        if not self._fits(shape):
            self._last += 1
            self._open = True
            self.segments[self._last] = 0
        self._seq += 1
        extent = Extent(key, NO_SALT, shape, self._last, self.segments[self._last], self._seq)
        self.segments[self._last] = extent.end
        self.files[extent.segment, extent.offset] = key
        return extent

    def seal(self) -> None:
        """Nothing more is appended to what there is."""
        self._open = False

    def reclaim(self, segment: int) -> None:
        del self.segments[segment]
        self.files = {place: key for place, key in self.files.items() if place[0] != segment}

    def _fits(self, shape: Shape) -> bool:
        end = self.segments.get(self._last)
        return self._open and end is not None and end + shape.extent_bytes <= self.settings.segment_bytes
