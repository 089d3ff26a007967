"""Copies between torch tensors in host memory and the pool, in the copy thread itself.

Owns the choice of operation, made by measurement (benchmarks/copy_rate.py). Neighbouring blocks go by memcpy in one
piece, which writes past the caches where torch's copy_ does not; scattered ones by index_select into the pool and
index_copy_ out of it, one call for each tensor, since each call takes the interpreter's lock again and a call for
each page would wait for a busy engine that often. Elements are as wide as the layout allows: index_copy_ moves one
at a time. Must never change torch's thread counts: they belong to the engine.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from blockyard.engine.copies.base import GroupPages, check_range, check_tensor, runs_of
from blockyard.engine.copies.elements import ELEMENTS, widest
from blockyard.engine.copies.page_tables import PageTables
from blockyard.engine.jobs import BlockRange

_MIN_RUN = 4
"""Mean length of runs of neighbouring blocks from which memcpy beats an index."""

_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcpy.restype = None

Run = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Pages:
    """One tensor seen as rows of `words` elements of `width` bytes; its pages begin `start` bytes into an area.

    `address` of the first row, 0 where rows are not dense and memcpy has no piece to move.
    """

    rows: Any
    width: int
    words: int
    start: int
    page_bytes: int
    address: int


class CpuCopier:
    """DeviceCopier for tensors on the CPU."""

    def __init__(self, groups: list[GroupPages]) -> None:
        self._groups = {group.group: group for group in groups}
        self._views = {group.group: _views(group) for group in groups}
        self._pool: dict[int, Any] = {}
        self._pool_address = 0
        self._page_tables: PageTables | None = None

    def area_bytes(self, group: int) -> int:
        """Bytes of one area of a group."""
        return self._groups[group].area_bytes

    def bind(self, pool: memoryview) -> None:
        """Use this pool, a whole number of 4 KiB pages, from now on: one flat view of it per element width."""
        raw = torch.frombuffer(pool, dtype=torch.int8)
        self._pool = {width: raw.view(element) for width, element in ELEMENTS}
        self._pool_address = raw.data_ptr()
        self._page_tables = PageTables(raw.data_ptr(), len(pool))

    def unbind(self) -> None:
        """Drop every view of the pool, and every thread that touches it."""
        if self._page_tables is not None:
            self._page_tables.stop()
            self._page_tables = None
        self._pool = {}
        self._pool_address = 0

    def fence(self) -> None:
        """Nothing to wait for: the engine's operations have ended when they return."""

    def begin(self, fence: None) -> None:
        """Nothing to wait for."""

    def finish(self) -> None:
        """Nothing to wait for: every copy has ended when it returns."""

    def store(self, blocks: BlockRange, offset: int) -> int:
        """Copy device pages to the area at `offset`; bytes."""
        runs, index = self._plan(blocks)
        for pages in self._views[blocks.group]:
            area = offset + pages.start + blocks.first_page * pages.page_bytes
            if index is not None:
                torch.index_select(pages.rows, 0, index, out=self._rows(pages, area, len(blocks.block_ids)))
            elif pages.address:
                for at, block, count in runs:
                    _memcpy(*self._pieces(pages, area, at, block), count * pages.page_bytes)
            else:
                for at, block, count in runs:
                    self._rows(pages, area + at * pages.page_bytes, count).copy_(pages.rows.narrow(0, block, count))
        return self._bytes(blocks)

    def load(self, offset: int, blocks: BlockRange) -> int:
        """Copy pages of the area at `offset` to device blocks; bytes."""
        runs, index = self._plan(blocks)
        for pages in self._views[blocks.group]:
            area = offset + pages.start + blocks.first_page * pages.page_bytes
            if index is not None:
                pages.rows.index_copy_(0, index, self._rows(pages, area, len(blocks.block_ids)))
            elif pages.address:
                for at, block, count in runs:
                    in_pool, in_tensor = self._pieces(pages, area, at, block)
                    _memcpy(in_tensor, in_pool, count * pages.page_bytes)
            else:
                for at, block, count in runs:
                    pages.rows.narrow(0, block, count).copy_(self._rows(pages, area + at * pages.page_bytes, count))
        return self._bytes(blocks)

    def _plan(self, blocks: BlockRange) -> tuple[list[Run], Any]:
        """Runs of neighbours (place, first block, count) and None, or where blocks are scattered an index tensor."""
        check_range(blocks, self._groups[blocks.group])
        runs = runs_of(blocks.block_ids)
        if len(runs) == 1 or len(runs) * _MIN_RUN <= len(blocks.block_ids):
            return runs, None
        return [], torch.tensor(blocks.block_ids)

    def _rows(self, pages: _Pages, area: int, count: int) -> Any:
        """`count` pages of the pool from byte `area` on, as rows."""
        return self._pool[pages.width].as_strided((count, pages.words), (pages.words, 1), area // pages.width)

    def _pieces(self, pages: _Pages, area: int, at: int, block: int) -> tuple[int, int]:
        """Addresses in the pool and in the tensor where a run begins."""
        in_pool = self._pool_address + area + at * pages.page_bytes
        return in_pool, pages.address + block * pages.page_bytes

    def _bytes(self, blocks: BlockRange) -> int:
        group = self._groups[blocks.group]
        return len(blocks.block_ids) * group.area_bytes // group.blocks_per_chunk


def _views(group: GroupPages) -> list[_Pages]:
    views = []
    start = 0
    for paged in group.tensors:
        check_tensor(paged)
        width, element = widest(paged, start)
        rows = paged.tensor[:, : paged.page_bytes].view(element)
        address = paged.tensor.data_ptr() if paged.tensor.stride(0) == paged.page_bytes else 0
        views.append(_Pages(rows, width, paged.page_bytes // width, start, paged.page_bytes, address))
        start += group.blocks_per_chunk * paged.page_bytes
    return views
