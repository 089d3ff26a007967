"""What a device copier does, and the layout of one rank's area.

    area of group g:  for each tensor of g in order:  blocks_per_chunk pages of its page_bytes, contiguous

Owns the layout and the copier's contract. Must never know sessions, keys or slots: an area is an offset into
the pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from blockyard.common.errors import BlockyardError
from blockyard.engine.jobs import BlockRange


class LayoutRefused(BlockyardError):
    """Tensors or block ranges that cannot be copied page by page."""


@dataclass(frozen=True, slots=True)
class PagedTensor:
    """A 2-D int8 tensor, one row per block; the first `page_bytes` of a row are the page, rows may lie
    further apart.
    """

    tensor: Any
    page_bytes: int


@dataclass(frozen=True, slots=True)
class GroupPages:
    """The paged tensors of one KV cache group, in the order of the area."""

    group: int
    tensors: Sequence[PagedTensor]
    blocks_per_chunk: int

    @property
    def area_bytes(self) -> int:
        """Bytes of one rank's share of a chunk."""
        return self.blocks_per_chunk * sum(paged.page_bytes for paged in self.tensors)


def check_range(blocks: BlockRange, group: GroupPages) -> None:
    """Refuse pages beyond the chunk, which would lie in somebody else's area, and blocks that there are not: memcpy
    would not notice, and a CUDA kernel would take the whole engine down.
    """
    end = blocks.first_page + len(blocks.block_ids)
    if blocks.first_page < 0 or end > group.blocks_per_chunk:
        raise LayoutRefused(
            f"group {group.group}: pages {blocks.first_page} to {end} of a chunk of {group.blocks_per_chunk}"
        )
    limit = min(len(paged.tensor) for paged in group.tensors)
    if blocks.block_ids and not 0 <= min(blocks.block_ids) <= max(blocks.block_ids) < limit:
        raise LayoutRefused(f"blocks {blocks.block_ids} are not all among the {limit} there are")


def check_tensor(paged: PagedTensor) -> None:
    """Refuse what does not have one dense page at the start of each row."""
    tensor = paged.tensor
    if tensor.dim() != 2 or tensor.element_size() != 1 or tensor.stride(1) != 1:
        shape = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise LayoutRefused(f"expected a 2-D int8 tensor with dense rows, got {shape}")
    if not 0 < paged.page_bytes <= tensor.shape[1]:
        raise LayoutRefused(f"page of {paged.page_bytes} bytes does not fit a row of {tensor.shape[1]} bytes")


def runs_of(block_ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of neighbouring blocks: (place in the list, first block, count)."""
    runs: list[tuple[int, int, int]] = []
    begin = 0
    for at in range(1, len(block_ids) + 1):
        if at == len(block_ids) or block_ids[at] != block_ids[at - 1] + 1:
            runs.append((begin, block_ids[begin], at - begin))
            begin = at
    return runs


class DeviceCopier(Protocol):
    """Copies whole pages. `fence` is called by the engine's thread, all else by the one copy thread."""

    def area_bytes(self, group: int) -> int:
        """Bytes of one area of a group."""
        ...

    def bind(self, pool: memoryview) -> None:
        """Use this pool from now on."""
        ...

    def unbind(self) -> None:
        """Drop every reference to the pool; nothing may be in flight."""
        ...

    def fence(self) -> Any:
        """A mark in the device's work so far; copies of a job wait for it."""
        ...

    def begin(self, fence: Any) -> None:
        """Let the copies that follow wait for `fence`."""
        ...

    def store(self, blocks: BlockRange, offset: int) -> int:
        """Start copying device pages to the area at `offset`; bytes."""
        ...

    def load(self, offset: int, blocks: BlockRange) -> int:
        """Start copying pages of the area at `offset` to device blocks; bytes."""
        ...

    def finish(self) -> None:
        """Wait until every copy started since `begin` has ended."""
        ...
