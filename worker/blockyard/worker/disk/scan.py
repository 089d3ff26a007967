"""Finds extents in a segment without its log. Owns the walk over its pages; changes nothing.

A header counts that fits this segment and this place. A page that begins no such extent is stepped over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.format.errors import Damaged, FormatError
from blockyard.worker.disk.format.extent_header import MAGIC, ExtentHeader, parse_extent_header
from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.io import DiskFile, read_full
from blockyard.worker.disk.verify import Checksum, require_payload

_WINDOW = 1 << 20


class _Window:
    """The part of a file that was read last."""

    def __init__(self, file: DiskFile, size: int) -> None:
        self._file = file
        self._memory = aligned(min(_WINDOW, max(PAGE, size)))
        self._start = self._end = 0

    def page(self, at: int) -> memoryview | None:
        """The page at `at`; None where the file ends."""
        if not self._start <= at < self._end:
            self._start = at
            self._end = at
            self._end += read_full(self._file, [self._memory], at) // PAGE * PAGE
            self._file.forget(at, self._end - at)
        if at >= self._end:
            return None
        return self._memory[at - self._start : at - self._start + PAGE]


def scan(
    file: DiskFile, size: int, number: int, uuid: bytes, known: Mapping[int, Extent], checksum: Checksum
) -> tuple[list[Extent], int]:
    """Extents that are whole and not `known` (by offset), and where the last extent of all ends."""
    unknown = headers(file, size, number, uuid, known)
    found = [header.extent for header in unknown if _is_whole(file, header, checksum)]
    return found, max([PAGE, *(extent.end for extent in [*known.values(), *found])])


def headers(
    file: DiskFile, size: int, number: int, uuid: bytes, known: Mapping[int, Extent], *, over_unreadable: bool = False
) -> Iterator[ExtentHeader]:
    """Headers of extents that are not `known`, whole or not. Where the device gives nothing it ends with an OSError, or
    steps over that.
    """
    window, at = _Window(file, size), PAGE
    while at < size:
        if at in known:
            at = known[at].end
            continue
        try:
            page = window.page(at)
        except OSError:
            if not over_unreadable:
                raise
            at += _WINDOW
            continue
        if page is None:
            break
        header = _header(page, number, uuid, at)
        if header is None or header.extent.end > size:
            at += PAGE
            continue
        yield header
        at = header.extent.end


def _header(page: memoryview, number: int, uuid: bytes, at: int) -> ExtentHeader | None:
    if page[: len(MAGIC)] != MAGIC:
        return None
    try:
        header = parse_extent_header(page, number)
    except FormatError:
        return None
    return header if header.uuid == uuid and header.extent.offset == at else None


def _is_whole(file: DiskFile, header: ExtentHeader, checksum: Checksum) -> bool:
    shape = header.extent.shape
    areas = [aligned(shape.stride) for _ in range(shape.areas)]
    if read_full(file, areas, header.extent.offset + PAGE) < shape.areas * shape.stride:
        return False
    try:
        require_payload(header, areas, checksum)
    except Damaged:
        return False
    return True
