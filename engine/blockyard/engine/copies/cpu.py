"""Copies between torch tensors in host memory and the pool, in the copy thread itself.

Owns the choice of operation, made by measurement (benchmarks/copy_rate.py): neighbouring blocks go as one
slice, scattered ones by index_select into the pool and index_copy_ out of it; elements are as wide as the
layout allows, since index_copy_ moves one element at a time (16 bytes are a quarter faster than 8). Must
never change torch's thread counts: they belong to the engine.
"""

from dataclasses import dataclass
from typing import Any

import torch

from blockyard.engine.copies.base import GroupPages, check_range, check_tensor, runs_of
from blockyard.engine.copies.elements import ELEMENTS, widest
from blockyard.engine.jobs import BlockRange

_MIN_RUN = 4
"""Mean length of runs of neighbouring blocks from which slices beat an index."""


@dataclass(frozen=True, slots=True)
class _Pages:
    """One tensor seen as rows of `words` elements of `width` bytes; its pages begin `start` bytes into an
    area.
    """

    rows: Any
    width: int
    words: int
    start: int
    page_bytes: int


class CpuCopier:
    """DeviceCopier for tensors on the CPU."""

    def __init__(self, groups: list[GroupPages]) -> None:
        self._groups = {group.group: group for group in groups}
        self._views = {group.group: _views(group) for group in groups}
        self._pool: dict[int, Any] = {}

    def area_bytes(self, group: int) -> int:
        """Bytes of one area of a group."""
        return self._groups[group].area_bytes

    def bind(self, pool: memoryview) -> None:
        """Use this pool from now on: one flat view of it per element width."""
        raw = torch.frombuffer(pool, dtype=torch.int8)
        self._pool = {width: raw.view(element) for width, element in ELEMENTS}

    def unbind(self) -> None:
        """Drop every view of the pool."""
        self._pool = {}

    def fence(self) -> None:
        """Nothing to wait for: the engine's operations have ended when they return."""

    def begin(self, fence: None) -> None:
        """Nothing to wait for."""

    def finish(self) -> None:
        """Nothing to wait for: every copy has ended when it returns."""

    def store(self, blocks: BlockRange, offset: int) -> int:
        """Copy device pages to the area at `offset`; bytes."""
        check_range(blocks, self._groups[blocks.group])
        plan = _plan(blocks.block_ids)
        copied = 0
        for pages in self._views[blocks.group]:
            area = self._area(pages, offset, blocks)
            if isinstance(plan, list):
                for at, block, count in plan:
                    area.narrow(0, at, count).copy_(pages.rows.narrow(0, block, count))
            else:
                torch.index_select(pages.rows, 0, plan, out=area)
            copied += len(blocks.block_ids) * pages.page_bytes
        return copied

    def load(self, offset: int, blocks: BlockRange) -> int:
        """Copy pages of the area at `offset` to device blocks; bytes."""
        check_range(blocks, self._groups[blocks.group])
        plan = _plan(blocks.block_ids)
        copied = 0
        for pages in self._views[blocks.group]:
            area = self._area(pages, offset, blocks)
            if isinstance(plan, list):
                for at, block, count in plan:
                    pages.rows.narrow(0, block, count).copy_(area.narrow(0, at, count))
            else:
                pages.rows.index_copy_(0, plan, area)
            copied += len(blocks.block_ids) * pages.page_bytes
        return copied

    def _area(self, pages: _Pages, offset: int, blocks: BlockRange) -> Any:
        """The rows of the area that lie opposite to these blocks."""
        count = len(blocks.block_ids)
        first = (offset + pages.start + blocks.first_page * pages.page_bytes) // pages.width
        return self._pool[pages.width].narrow(0, first, count * pages.words).view(count, pages.words)


def _views(group: GroupPages) -> list[_Pages]:
    views = []
    start = 0
    for paged in group.tensors:
        check_tensor(paged)
        width, element = widest(paged, start)
        rows = paged.tensor[:, : paged.page_bytes].view(element)
        views.append(_Pages(rows, width, paged.page_bytes // width, start, paged.page_bytes))
        start += group.blocks_per_chunk * paged.page_bytes
    return views


def _plan(block_ids: list[int]) -> list[tuple[int, int, int]] | Any:
    """Runs (place, first block, count) where blocks are mostly neighbours, else an index tensor."""
    runs = runs_of(block_ids)
    return runs if len(runs) == 1 or len(runs) * _MIN_RUN <= len(block_ids) else torch.tensor(block_ids)
