"""Drops what is damaged. Owns the order; what changes in the files is the store's work, as in a worker's start."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.recovery import Trouble
from blockyard.worker.disk.segments import SegmentStore
from blockyard.worker.disk.settings import StoreSettings

# No segment is made here, so no cap matters.
_SETTINGS = StoreSettings(cap_bytes=1 << 62, floor_bytes=0, segment_bytes=1 << 20)


class Repaired(NamedTuple):
    """`rebuilt` counts logs that were written anew; `kept` are damaged extents whose drop could not be noted."""

    removed: list[Trouble]
    rebuilt: int
    dropped: list[Extent]
    kept: list[Extent]


def repair(path: Path, damaged: Sequence[Extent]) -> Repaired:
    """Remove what a start removes, seal what has no seal, drop what is damaged, sync. Raises OSError."""
    store, started = SegmentStore.open(RealDirectory(path, direct=False), _SETTINGS)
    rebuilt = 0
    for number in started.to_scan:
        # What the device does not give stays as it is.
        with contextlib.suppress(OSError):
            store.scan(number)
            rebuilt += 1
    # What only the walk found is not whole, so the scan did not take it over.
    known = set(started.extents)
    dropped, kept = list[Extent](), list[Extent]()
    for extent in damaged:
        (dropped if extent not in known or store.drop(extent) else kept).append(extent)
    store.close()
    removed = [trouble for trouble in started.troubles if not trouble.left]
    return Repaired(removed, rebuilt, dropped, kept)
