"""Devices under a worker core driven by hand: segment files as numbers, operations that end when a test says so.

Owns where copies lie, as production's segment store would place them, and which operations are under way.
"""

from __future__ import annotations

from typing import Any

from blockyard.common.slot_table import PAGE, align_page
from blockyard.worker.core import instructions
from blockyard.worker.core.disk import wire
from blockyard.worker.core.disk.settings import DirectorySettings, DiskSettings
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
        each = tuple(DirectorySettings(f"disk{number}", segments * size, size) for number in range(directories))
        super().__init__(slots, disk=DiskSettings(each, **(_FREELY | (disk or {}))), **settings)
        self.devices = [Device(each[number]) for number in range(directories)]
        self.pending: dict[int, Pending] = {}
        self.dropped: list[wire.DropExtent | wire.DropWorld] = []
        for number in range(directories):
            self.do(wire.DiskFound(number, [], [], [], last=True))

    def do(self, event: Any) -> list[instructions.Instruction]:
        out = super().do(event)
        for one in out:
            if isinstance(one, wire.DropExtent | wire.DropWorld):
                self.dropped.append(one)
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
                return self._append(op, one.directory, one.extent)
            case wire.MoveExtent():
                return self._append(op, one.place.directory, one.extent)
            case wire.ReadExtent():
                return wire.DiskRead(op, tuple(range(one.extent.areas)))
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

    def found(self, copies: list[tuple[bytes, bytes]], world: wire.DiskWorld, directory: int = 0) -> None:
        """An earlier life left these (key, parent), in segments of their own making."""
        device = self.devices[directory]
        extents = [wire.Extent(key, parent, world, 0, world.areas, PAGE) for key, parent in copies]
        told = [wire.FoundCopy(one.key, one.parent, 0, 0, device.append(directory, one)) for one in extents]
        self.do(wire.DiskFound(directory, [world], told, [], last=True))

    def _append(self, op: int, directory: int, extent: wire.Extent) -> wire.DiskEvent:
        device = self.devices[directory]
        if not device.has_room(extent):
            return wire.DiskFailed(op, "full", "no segment is free")
        return wire.DiskWritten(op, device.append(directory, extent))


class Device:
    """Segments by number, each with where its next extent goes; the last has room until it is full."""

    def __init__(self, settings: DirectorySettings) -> None:
        self.settings = settings
        self.segments: dict[int, int] = {}
        self.files: dict[wire.Place, bytes] = {}
        """The key whose bytes lie there."""
        self._last = 0

    def has_room(self, extent: wire.Extent) -> bool:
        return self._fits(extent) or len(self.segments) < self.settings.segments

    def append(self, directory: int, extent: wire.Extent) -> wire.Place:
        if not self._fits(extent):
            self._last += 1
            self.segments[self._last] = 0
        place = wire.Place(directory, self._last, self.segments[self._last], _length(extent))
        self.segments[self._last] += place.length
        self.files[place] = extent.key
        return place

    def reclaim(self, segment: int) -> None:
        del self.segments[segment]
        self.files = {place: key for place, key in self.files.items() if place.segment != segment}

    def _fits(self, extent: wire.Extent) -> bool:
        end = self.segments.get(self._last)
        return end is not None and end + _length(extent) <= self.settings.segment_bytes


def _length(extent: wire.Extent) -> int:
    return PAGE + extent.areas * align_page(extent.area_bytes)
