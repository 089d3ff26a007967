"""The CPU copier: every geometry bit-exact, nothing touched beside the pages that were named."""

import random
from collections.abc import Sequence

import pytest

from blockyard.common.slot_table import align_page
from blockyard.engine.copies.base import GroupPages, LayoutRefused, PagedTensor
from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.jobs import BlockRange
from support.engine_side import bytes_of, pages

OFFSET = 8192
SCATTERED = [9, 2, 11, 5]
NEIGHBOURS = [4, 5, 6, 7]
MIXED = [3, 4, 5, 6, 7, 8, 9, 10, 20, 21, 22, 23, 24, 25, 26, 27]

GEOMETRIES = {
    "even": [(4096, None), (4096, None)],
    "unequal": [(256, None), (64, None), (1024, None)],
    "multiple of 8": [(24, None), (40, None)],
    "multiple of 2": [(18, None), (34, None)],
    "odd": [(7, None), (13, None), (16, None)],
    "rows wider than pages": [(64, 96), (48, 50), (5, 8)],
}


def tensors_of(name: str) -> list[PagedTensor]:
    return [pages(32, page, row) for page, row in GEOMETRIES[name]]


def expected_area(tensors: Sequence[PagedTensor], block_ids: list[int]) -> bytes:
    """The layout as its definition says it: tensor by tensor, page by page."""
    return b"".join(bytes_of([paged], block)[0] for paged in tensors for block in block_ids)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("block_ids", [SCATTERED, NEIGHBOURS, MIXED], ids=["scattered", "neighbours", "mixed"])
def test_store_then_load_elsewhere(name: str, block_ids: list[int]) -> None:
    tensors = tensors_of(name)
    group = GroupPages(0, tensors, len(block_ids))
    copier = CpuCopier([group])
    pool = bytearray(b"\xaa" * (OFFSET + align_page(group.area_bytes) + 4096))
    copier.bind(memoryview(pool))

    copied = copier.store(BlockRange(block_ids), OFFSET)
    assert copied == group.area_bytes == copier.area_bytes(0)
    end = OFFSET + group.area_bytes
    assert bytes(pool[OFFSET:end]) == expected_area(tensors, block_ids)
    assert set(pool[:OFFSET]) | set(pool[end:]) == {0xAA}

    target = random.Random(1).sample(range(32), len(block_ids))
    before = [bytes_of(tensors, block) for block in range(32)]
    padding = [paged.tensor[:, paged.page_bytes :].clone() for paged in tensors]
    assert copier.load(OFFSET, BlockRange(target)) == copied
    after = [bytes_of(tensors, block) for block in range(32)]
    for block in range(32):
        source = block_ids[target.index(block)] if block in target else block
        assert after[block] == before[source]
    for paged, kept in zip(tensors, padding, strict=True):
        assert paged.tensor[:, paged.page_bytes :].equal(kept)
    copier.unbind()


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize(("first_page", "count"), [(1, 3), (3, 1), (1, 2), (0, 2)])
def test_part_of_a_chunk(name: str, first_page: int, count: int) -> None:
    tensors = tensors_of(name)
    copier = CpuCopier([GroupPages(0, tensors, 4)])
    copier.bind(memoryview(bytearray(OFFSET + align_page(copier.area_bytes(0)))))
    copier.store(BlockRange(NEIGHBOURS), OFFSET)
    wanted = [bytes_of(tensors, block) for block in NEIGHBOURS[first_page : first_page + count]]
    target = [20, 29, 22, 31][:count]
    copier.load(OFFSET, BlockRange(target, first_page))
    assert [bytes_of(tensors, block) for block in target] == wanted


def test_groups_have_their_own_tensors() -> None:
    full, window = pages(8, 64), pages(8, 24)
    copier = CpuCopier([GroupPages(0, [full], 2), GroupPages(3, [window, window], 2)])
    assert (copier.area_bytes(0), copier.area_bytes(3)) == (128, 96)
    pool = bytearray(4096)
    copier.bind(memoryview(pool))
    copier.store(BlockRange([1, 2], group=3), 0)
    assert bytes(pool[:96]) == expected_area([window, window], [1, 2])


@pytest.mark.parametrize(
    "blocks",
    [BlockRange([0, 1, 2]), BlockRange([0], 2), BlockRange([0], -1), BlockRange([0, 8]), BlockRange([-1, 0])],
)
def test_pages_beyond_the_chunk_and_blocks_beyond_the_tensor_are_refused(blocks: BlockRange) -> None:
    copier = CpuCopier([GroupPages(0, [pages(8, 64)], 2)])
    copier.bind(memoryview(bytearray(4096)))
    with pytest.raises(LayoutRefused):
        copier.store(blocks, 0)
    with pytest.raises(LayoutRefused):
        copier.load(0, blocks)


def test_tensors_without_dense_pages_are_refused() -> None:
    wide = pages(8, 64)
    for unfit in (PagedTensor(wide.tensor[:, ::2], 32), PagedTensor(wide.tensor, 65), PagedTensor(wide.tensor, 0)):
        with pytest.raises(LayoutRefused):
            CpuCopier([GroupPages(0, [unfit], 2)])
