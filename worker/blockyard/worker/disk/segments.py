"""The segment store of one directory: extents in, verified extents out, whole segments back.

Owns which segments there are and who uses them. It decides nothing: what is written, dropped or reclaimed is told
from above. All methods block on files and may be called from several threads. The lock that they share is never held
during a file operation; a second one is, by whoever makes a segment, and only writers wait for it. So an operation that
hangs holds up no read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk import lifecycle
from blockyard.worker.disk.budget import Budget
from blockyard.worker.disk.buffers import HeaderPages
from blockyard.worker.disk.errors import ExtentTooLarge, SegmentGone
from blockyard.worker.disk.format.errors import Damage, Damaged
from blockyard.worker.disk.format.extent_header import ExtentHeader
from blockyard.worker.disk.format.names import segment_name
from blockyard.worker.disk.format.segment_header import UUID_BYTES
from blockyard.worker.disk.format.values import Extent, Shape
from blockyard.worker.disk.io import DiskDirectory, read_full, write_all
from blockyard.worker.disk.recovery import FoundSegment, Trouble, read_again, recover
from blockyard.worker.disk.segment import Segment, SegmentInfo
from blockyard.worker.disk.settings import StoreSettings
from blockyard.worker.disk.verify import Checksum, check_areas, check_header, verified, xxh3


class Started(NamedTuple):
    """What a start found before any scan; `extents` in the order in which they were written."""

    extents: list[Extent]
    to_scan: list[int]
    troubles: list[Trouble]


class SegmentStore:
    """Made by `open`, once per directory and process."""

    def __init__(
        self, shop: lifecycle.Workshop, segments: dict[int, Segment], next_segment: int, next_seq: int
    ) -> None:
        self._shop = shop
        self._segments = segments
        self._next_segment = next_segment
        self._next_seq = next_seq
        self._growing: Segment | None = None
        # Nobody knows whether the life before had synced what it left.
        self._dirty = {number for number, one in segments.items() if not one.is_unread}
        self._pages = HeaderPages()
        self._lock = threading.Lock()
        self._making = threading.Lock()

    @classmethod
    def open(
        cls,
        directory: DiskDirectory,
        settings: StoreSettings,
        *,
        checksum: Checksum = xxh3,
        new_uuid: Callable[[], bytes] = lambda: os.urandom(UUID_BYTES),
        now_ns: Callable[[], int] = time.time_ns,
    ) -> tuple[SegmentStore, Started]:
        """Read the directory's logs. Raises ValueError for sizes that cannot be, OSError if nothing can be read."""
        settings.check()
        found = recover(directory)
        shop = lifecycle.Workshop(directory, settings, Budget(settings), checksum, new_uuid, now_ns)
        shop.budget.recount(directory.entries())
        extents = sorted((extent for one in found.segments for extent in one.live()), key=lambda extent: extent.seq)
        to_scan = [one for one in found.segments if not one.sealed]
        segments = {number: Segment.unread(number, size) for number, size in found.unread.items()}
        segments |= {one.header.segment: lifecycle.known_segment(directory, one) for one in found.segments}
        started = Started(extents, [*(one.header.segment for one in to_scan), *found.unread], found.troubles)
        return cls(shop, segments, found.next_segment, _seq_after(found.segments)), started

    def append(
        self, key: bytes, salt_tag: bytes, shape: Shape, checksums: Sequence[int], areas: Sequence[memoryview]
    ) -> Extent:
        """Write a chunk's areas, each padded to whole pages, and note it. Once this returns, a kill cannot lose it.

        Raises NoRoom, ExtentTooLarge, or the OSError of what failed; the extent is then not there.
        """
        check_areas(shape, areas)
        check_header(shape, checksums)
        segment, extent = self._reserve(key, salt_tag, shape)
        try:
            self._write(segment, ExtentHeader(segment.uuid, extent, tuple(checksums)), areas)
            with segment.log_lock:
                assert segment.log is not None
                segment.log.put(extent)
            with self._lock:
                segment.extents += 1
                self._dirty.add(segment.number)
        finally:
            self._stop_writing(segment)
        return extent

    def read(self, extent: Extent, areas: Sequence[memoryview]) -> tuple[int, ...]:
        """Fill the areas with exactly this extent and return their checksums; whatever else happens raises, and what
        the areas hold then is undefined.

        Raises SegmentGone, Damaged, UnknownVersion, or the OSError of what failed.
        """
        check_areas(extent.shape, areas)
        with self._using(extent.segment) as segment, self._pages.page() as page:
            file = self._shop.directory.open(segment_name(segment.number), direct=True)
            try:
                done = read_full(file, [page, *areas], extent.offset)
                file.forget(extent.offset, done)
            finally:
                file.close()
            if done < extent.shape.extent_bytes:
                raise Damaged(Damage.TRUNCATED, f"extent has {done} of {extent.shape.extent_bytes} bytes")
            return verified(page, areas, segment.uuid, extent, self._shop.checksum).checksums

    def drop(self, extent: Extent) -> bool:
        """This extent is not to be found by the next start; False when that could not be noted, and it may be."""
        try:
            with self._using(extent.segment) as segment:
                noted = self._note_drop(segment, extent)
                with self._lock:
                    segment.extents -= 1
                    self._dirty.add(segment.number)
                return noted
        except SegmentGone:
            return True

    def scan(self, number: int) -> list[Extent]:
        """Look through a segment that a start told of, and seal it; what was found beyond the log, or all of it if it
        could not be read before. Raises SegmentGone, or OSError; then it may be tried again.

        What was found may be older than what is known of the same key: the higher `seq` counts.
        """
        known: list[Extent] = []
        with self._using(number) as segment:
            if segment.is_unread:
                known = self._read_again(segment)
        with self._using(number) as segment:
            return known if segment.known is None else [*known, *lifecycle.scan_segment(self._shop, segment)]

    def reclaim(self, number: int) -> bool:
        """Remove a segment with all that is in it; from now on nobody begins to use it.

        False while somebody still does: ask again when they have ended. True when its bytes are free.
        """
        with self._lock:
            segment = self._segments.get(number)
            if segment is None:
                return True
            segment.retired = True
            if self._growing is segment:
                self._growing = None
            if segment.busy:
                return False
            segment.writers += 1
        try:
            lifecycle.remove_segment(self._shop, segment)
            with self._lock:
                del self._segments[number]
                self._dirty.discard(number)
        finally:
            with self._lock:
                segment.writers -= 1
        return True

    def sync(self) -> None:
        """All that was acknowledged before survives a loss of power. On OSError the next sync does it all again."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        try:
            for number in sorted(dirty):
                lifecycle.sync_segment(self._shop, number)
            self._shop.directory.sync()
        except OSError:
            with self._lock:
                self._dirty |= dirty & self._segments.keys()
            raise

    def probe(self) -> None:
        """Raises OSError unless a page can be written, synced and read back."""
        lifecycle.probe_directory(self._shop.directory)

    def close(self) -> None:
        """Seal what grows, so that the next start need not scan it, and sync. Nobody else may be using the store."""
        with self._lock:
            growing, self._growing = self._growing, None
            if growing is not None:
                growing.writers += 1
        if growing is not None:
            self._seal(growing)
        self.sync()

    @property
    def used_bytes(self) -> int:
        """What the directory takes, as `du` counts it."""
        return self._shop.budget.used

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first."""
        with self._lock:
            return [
                SegmentInfo(one.number, one.size, one.extents, one is self._growing, one.known is None)
                for _, one in sorted(self._segments.items())
            ]

    def _reserve(self, key: bytes, salt_tag: bytes, shape: Shape) -> tuple[Segment, Extent]:
        """A place in the growing segment, or in a new one when it is full."""
        size = shape.extent_bytes
        if size > self._shop.settings.segment_bytes - PAGE:
            raise ExtentTooLarge(
                f"an extent of {size} bytes does not fit a segment of {self._shop.settings.segment_bytes}"
            )
        while True:
            with self._lock:
                segment = self._growing
                if segment is not None and segment.fits(size):
                    seq, self._next_seq = self._next_seq, self._next_seq + 1
                    return segment, Extent(key, salt_tag, shape, segment.number, segment.take(size), seq)
            self._replace(segment, size)

    def _write(self, segment: Segment, header: ExtentHeader, areas: Sequence[memoryview]) -> None:
        assert segment.file is not None
        try:
            with self._pages.page() as page:
                page[:] = header.pack()
                write_all(segment.file, [page, *areas], header.extent.offset)
        except OSError as error:
            with self._lock:
                segment.give_back(header.extent)
                if error.errno == errno.ESTALE and self._growing is segment:
                    # Its file is gone: the next write begins another.
                    self._growing = None
            raise

    def _replace(self, full: Segment | None, size: int) -> None:
        """Make another segment the growing one, unless somebody else has."""
        with self._making:
            with self._lock:
                if self._growing is not full:
                    return
                self._growing = None
                to_seal = full if full is not None and not full.writers else None
                if to_seal is not None:
                    to_seal.writers += 1
                number, self._next_segment = self._next_segment, self._next_segment + 1
            if to_seal is not None:
                self._seal(to_seal)
            made = lifecycle.make_segment(self._shop, number)
            with self._lock:
                self._segments[number] = self._growing = made

    def _stop_writing(self, segment: Segment) -> None:
        """The last writer of a full segment seals it."""
        with self._lock:
            last = segment.writers == 1 and segment is not self._growing and not segment.retired
            if not last:
                segment.writers -= 1
        if last:
            self._seal(segment)

    def _seal(self, segment: Segment) -> None:
        """Called by who counts as its only writer, and is none afterwards."""
        # What cannot be sealed now is scanned at the next start; no write is worth less for it.
        with contextlib.suppress(OSError):
            lifecycle.seal_segment(self._shop, segment)
        with self._lock:
            segment.writers -= 1

    def _read_again(self, unread: Segment) -> list[Extent]:
        """Put what is there by now in its place; what its log tells. Nobody may use it any more if it is no segment."""
        number = unread.number
        found = read_again(self._shop.directory, number).segments
        with self._lock:
            if unread.retired or self._segments.get(number) is not unread:
                raise SegmentGone(f"segment {number} was reclaimed")
            del self._segments[number]
            for one in found:
                self._segments[number] = lifecycle.known_segment(self._shop.directory, one)
                self._dirty.add(number)
                self._next_seq = max(self._next_seq, _seq_after(found))
        return [extent for one in found for extent in one.live()]

    def _note_drop(self, segment: Segment, extent: Extent) -> bool:
        with segment.log_lock:
            if segment.known is not None:
                segment.dropped.add(extent.offset)
                return False
            assert segment.log is not None
            try:
                return segment.log.drop(extent)
            finally:
                if segment.file is None:
                    segment.log.close()

    @contextmanager
    def _using(self, number: int) -> Iterator[Segment]:
        with self._lock:
            segment = self._segments.get(number)
            if segment is None or segment.retired:
                raise SegmentGone(f"segment {number} was reclaimed")
            segment.readers += 1
        try:
            yield segment
        finally:
            with self._lock:
                segment.readers -= 1


def _seq_after(found: Sequence[FoundSegment]) -> int:
    """A scan may find higher numbers than any log tells, but no more of them than fit."""
    last = max((extent.seq for one in found for extent in one.known.values()), default=0)
    return 1 + last + sum(one.size // (2 * PAGE) for one in found if not one.sealed)
