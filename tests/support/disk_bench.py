"""A segment store under test and the truth about it: what was put, what may be there, what must not.

Works on any directory, real or modelled. Owns the expectations; never looks into a store's insides.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.errors import NoRoom, SegmentGone
from blockyard.worker.disk.format.errors import FormatError
from blockyard.worker.disk.format.values import NO_SALT, Extent, Shape
from blockyard.worker.disk.io import DiskDirectory
from blockyard.worker.disk.segments import SegmentStore, Started
from blockyard.worker.disk.settings import StoreSettings
from support.disk_samples import checksums, digest, empty_areas, payload, shape

SMALL = StoreSettings(cap_bytes=1 << 20, floor_bytes=0, segment_bytes=24 * PAGE)
SHAPES = [
    shape(areas=1, area_bytes=PAGE),
    shape(areas=2, area_bytes=PAGE + 100),
    shape(areas=1, area_bytes=100, group=1),
]


def open_store(
    directory: DiskDirectory, settings: StoreSettings = SMALL, seed: int = 0
) -> tuple[SegmentStore, Started]:
    """With uuids that follow from the seed."""
    draw = random.Random(seed)
    return SegmentStore.open(directory, settings, new_uuid=lambda: draw.randbytes(16), now_ns=lambda: 1)


def put(store: SegmentStore, number: int, of: Shape) -> Extent:
    key = digest("key", number)
    areas = payload(key, of)
    return store.append(key, NO_SALT, of, checksums(areas, of), areas)


def outcome(store: SegmentStore, extent: Extent) -> str:
    """`right`, or why there is nothing; wrong bytes fail the test."""
    areas = empty_areas(extent.shape)
    try:
        sums = store.read(extent, areas)
    except SegmentGone:
        return "gone"
    except FormatError as error:
        return type(error).__name__
    except OSError:
        return "error"
    right = payload(extent.key, extent.shape)
    size = extent.shape.area_bytes
    assert [bytes(area[:size]) for area in areas] == [bytes(area[:size]) for area in right], "wrong bytes were read"
    assert sums == checksums(right, extent.shape)
    return "right"


def allocated(directory: DiskDirectory) -> int:
    """As `du` counts it."""
    listing = directory.entries()
    return listing.own_bytes + sum(entry.allocated for entry in listing.entries)


@dataclass
class Bench:
    """Random work on one directory over several lives of its store."""

    draw: random.Random
    settings: StoreSettings = SMALL
    next_key: int = 0
    acknowledged: dict[bytes, Extent] = field(default_factory=dict)
    """What must be there: its write was acknowledged, and nobody asked for it to go."""
    durable: dict[bytes, Extent] = field(default_factory=dict)
    """Those of them that were synced."""
    dropped: set[Extent] = field(default_factory=set)
    """What must not be found again: its drop was noted."""
    lives: int = 0
    reads: int = 0

    def start(self, directory: DiskDirectory, *, after_power_cut: bool = False) -> None:
        """A new life: what it finds, logs and scans together, is checked against what is known."""
        self.lives += 1
        self.store, started = open_store(directory, self.settings, self.lives)
        found = dict.fromkeys(started.extents)
        for number in started.to_scan:
            found.update((extent, None) for extent in self.store.scan(number))
        must = self.durable if after_power_cut else self.acknowledged
        lost = [extent for extent in must.values() if extent not in found]
        assert not lost, "what was acknowledged was not found"
        if not after_power_cut:
            assert not self.dropped & found.keys(), "what was dropped was found again"
        self.acknowledged.clear()
        self.dropped.clear()
        for extent in found:
            result = outcome(self.store, extent)
            if result == "right":
                self.acknowledged[extent.key] = extent
            else:
                assert after_power_cut and extent not in must.values(), f"{result} for what was found"
                self.store.drop(extent)
        self.check_books(directory)

    def check_books(self, directory: DiskDirectory) -> None:
        """Restart accounting is exact, and the cap is kept."""
        assert self.store.used_bytes == allocated(directory)
        assert self.store.used_bytes <= self.settings.cap_bytes

    def steps(self, count: int) -> None:
        """Some operations; errors of the disk pass, as those above a store would let them."""
        for _ in range(count):
            acts: list[Callable[[], None]] = [self.put, self.read, self.drop, self.reclaim, self.sync]
            (act,) = self.draw.choices(acts, [10, 5, 2, 0.5, 1])
            with contextlib.suppress(OSError):
                act()

    def put(self) -> None:
        self.next_key += 1
        try:
            extent = put(self.store, self.next_key, self.draw.choice(SHAPES))
        except NoRoom:
            self.reclaim()
        else:
            self.acknowledged[extent.key] = extent

    def read(self) -> None:
        if self.acknowledged:
            self.reads += 1
            assert outcome(self.store, self.draw.choice(list(self.acknowledged.values()))) in ("right", "error")

    def drop(self) -> None:
        if self.acknowledged:
            extent = self.acknowledged.pop(self.draw.choice(list(self.acknowledged)))
            self.durable.pop(extent.key, None)
            if self.store.drop(extent):
                self.dropped.add(extent)

    def reclaim(self) -> None:
        segments = self.store.segments()
        if segments:
            number = segments[0].number
            for known in (self.acknowledged, self.durable):
                for extent in [extent for extent in known.values() if extent.segment == number]:
                    del known[extent.key]
            self.dropped = {extent for extent in self.dropped if extent.segment != number}
            assert self.store.reclaim(number)

    def sync(self) -> None:
        self.store.sync()
        self.durable = dict(self.acknowledged)
