"""A segment's files from their making to their end. Owns the order of operations on them, which is what a crash meets.

make     segment file, its header, log file, its header       a crash leaves a segment without extents
seal     cut the segment, note the seal, cut the log          a crash leaves a segment to be scanned
scan     find what the log does not tell, cut the segment, put a new log in place of the old one
remove   segment file, log, then both for good                a crash leaves a log without a segment, or both
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.common.slot_table import PAGE, align_page
from blockyard.worker.disk.budget import Budget
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.format.log import LAYOUT, LogHeader
from blockyard.worker.disk.format.names import log_name, segment_name, temporary
from blockyard.worker.disk.format.segment_header import SegmentHeader
from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.io import DiskDirectory, read_full, write_all
from blockyard.worker.disk.recovery import FoundSegment
from blockyard.worker.disk.scan import scan
from blockyard.worker.disk.segment import Segment
from blockyard.worker.disk.segment_log import DROP_BYTES, PUT_BYTES, SEAL_BYTES, SHAPE_BYTES, SegmentLog
from blockyard.worker.disk.settings import StoreSettings
from blockyard.worker.disk.verify import Checksum


@dataclass(frozen=True)
class Workshop:
    """What working on segments needs: `new_uuid` draws 16 random bytes, `now_ns` is unix time."""

    directory: DiskDirectory
    settings: StoreSettings
    budget: Budget
    checksum: Checksum
    new_uuid: Callable[[], bytes]
    now_ns: Callable[[], int]


def known_segment(directory: DiskDirectory, found: FoundSegment) -> Segment:
    """One that a start found."""
    header, live = found.header, len(found.live())
    number, size = header.segment, header.segment_bytes
    if not found.sealed:
        return Segment(
            *(number, header.uuid, found.size, size, None),
            extents=live,
            known=found.known,
            dropped=found.dropped,
        )
    log_header = LogHeader(header.uuid, number, size)
    log = SegmentLog(directory, log_header, found.log_size, found.log_end, found.log_count)
    return Segment(number, header.uuid, found.size, size, log, end=found.used_bytes, extents=live, sealed=True)


def make_segment(shop: Workshop, number: int) -> Segment:
    """A new segment to write to. Raises NoRoom, or OSError with nothing left behind if that can be helped."""
    directory, size = shop.directory, shop.settings.segment_bytes
    since = shop.budget.changes
    shop.budget.recount(directory.entries(), since)
    shop.budget.require_segment(directory.space())
    header = SegmentHeader(shop.new_uuid(), number, size, shop.now_ns())
    file = directory.create(segment_name(number), size, direct=True)
    try:
        page = aligned(PAGE)
        page[:] = header.pack()
        write_all(file, [page], 0)
        log = SegmentLog.create(directory, LogHeader(header.uuid, number, size), shop.settings.log_bytes)
    except OSError:
        file.close()
        for name in (log_name(number), segment_name(number)):
            with contextlib.suppress(OSError):
                directory.unlink(name)
        raise
    shop.budget.set(segment_name(number), file.stat().allocated)
    shop.budget.set(log_name(number), log.allocated())
    return Segment(number, header.uuid, size, size, log, file)


def seal_segment(shop: Workshop, segment: Segment) -> None:
    """Nobody writes to it any more. On OSError it stays readable, and is scanned at the next start."""
    assert segment.file is not None and segment.log is not None
    with segment.log_lock:
        try:
            segment.file.truncate(segment.end)
            segment.size = segment.end
            shop.budget.set(segment_name(segment.number), segment.file.stat().allocated)
            shop.budget.set(log_name(segment.number), segment.log.seal(segment.end, segment.extents))
            segment.sealed = True
        finally:
            close_files(segment)


def scan_segment(shop: Workshop, segment: Segment) -> list[Extent]:
    """Find what the log of an unsealed segment does not tell, and seal it; what was found."""
    assert segment.known is not None
    file = shop.directory.open(segment_name(segment.number), direct=True, write=True)
    try:
        found, end = scan(file, segment.size, segment.number, segment.uuid, segment.known, shop.checksum)
        with segment.log_lock:
            logged = [extent for offset, extent in segment.known.items() if offset not in segment.dropped]
            live = sorted([*logged, *found], key=lambda extent: extent.offset)
            file.truncate(end)
            segment.log = _write_log(shop, segment, live, end)
            shop.budget.set(segment_name(segment.number), file.stat().allocated)
            segment.size = segment.end = end
            segment.extents, segment.known, segment.sealed = len(live), None, True
    finally:
        file.close()
    return found


def remove_segment(shop: Workshop, segment: Segment) -> None:
    """Its bytes are free once this returns, also after a loss of power. May be tried again after an OSError."""
    close_files(segment)
    names = (segment_name(segment.number), log_name(segment.number))
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            shop.directory.unlink(name)
    shop.directory.sync()
    for name in names:
        shop.budget.set(name, 0)


def sync_segment(shop: Workshop, number: int) -> None:
    """What was written to it survives a loss of power, and is not kept in memory twice."""
    for name in (segment_name(number), log_name(number)):
        try:
            file = shop.directory.open(name, direct=False)
        except FileNotFoundError:
            continue
        try:
            file.fdatasync()
            file.forget(0, file.stat().size)
        finally:
            file.close()


def probe_directory(directory: DiskDirectory) -> None:
    """Write a page, sync it and read it back. Raises OSError if any of it fails, or brings other bytes."""
    name, written, read = temporary("probe"), aligned(PAGE), aligned(PAGE)
    written[:] = bytes(range(256)) * (PAGE // 256)
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(name)
    file = directory.create(name, PAGE, direct=True)
    try:
        write_all(file, [written], 0)
        file.fdatasync()
        if read_full(file, [read], 0) != PAGE or read != written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    finally:
        file.close()
        directory.unlink(name)


def close_files(segment: Segment) -> None:
    """Let go of descriptors."""
    if segment.file is not None:
        segment.file.close()
        segment.file = None
    if segment.log is not None:
        segment.log.close()


def _write_log(shop: Workshop, segment: Segment, live: list[Extent], end: int) -> SegmentLog:
    """A sealed log of these extents, in the place of whatever was there."""
    number, shapes = segment.number, {extent.shape for extent in live}
    size = LAYOUT.size + len(shapes) * SHAPE_BYTES + len(live) * (PUT_BYTES + DROP_BYTES) + SEAL_BYTES
    name = temporary(log_name(number))
    with contextlib.suppress(FileNotFoundError):
        shop.directory.unlink(name)
    header = LogHeader(segment.uuid, number, segment.preallocated)
    log = SegmentLog.create(shop.directory, header, align_page(size), name)
    try:
        for extent in live:
            log.put(extent)
        allocated = log.seal(end, len(live))
        log.sync()
        shop.directory.rename(name, log_name(number))
    finally:
        log.close()
    shop.budget.set(log_name(number), allocated)
    return log
