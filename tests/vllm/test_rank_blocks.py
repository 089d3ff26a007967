"""GPU blocks of a load are split by group and chunk, or the load is refused."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadKey, make_offload_key

from blockyard.engine.jobs import BlockRange
from blockyard.engine.vllm.groups import CacheGroup
from blockyard.engine.vllm.rank import blocks_of_load

PAIRS = (CacheGroup(0, 16, 2),)
FOURS = (CacheGroup(0, 16, 4),)
MIXED = (CacheGroup(0, 16, 4, window=20, first_page=2), CacheGroup(1, 16, 4))


def load(block_ids: list[int], sizes: list[int], firsts: list[int]) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(block_ids, group_sizes=sizes, block_indices=firsts)


def keys(*groups: int) -> list[OffloadKey]:
    return [make_offload_key(bytes([n]) * 32, group) for n, group in enumerate(groups)]


def test_whole_chunks() -> None:
    assert blocks_of_load(load([5, 6, 9, 2], [4], [4]), keys(0, 0), PAIRS) == [
        BlockRange([5, 6], 0, 0),
        BlockRange([9, 2], 0, 0),
    ]


def test_a_load_that_begins_inside_a_chunk() -> None:
    ranges = blocks_of_load(load([7, 9, 3, 4, 5, 6], [6], [6]), keys(0, 0), FOURS)
    assert ranges == [BlockRange([7, 9], 2, 0), BlockRange([3, 4, 5, 6], 0, 0)]


def test_a_load_that_ends_inside_a_chunk() -> None:
    ranges = blocks_of_load(load([1, 2, 3], [3], [0]), keys(0, 0), PAIRS)
    assert ranges == [BlockRange([1, 2], 0, 0), BlockRange([3], 0, 0)]


def test_groups_have_blocks_of_their_own() -> None:
    ranges = blocks_of_load(load([7, 8, 1, 2, 3, 4, 5, 6], [2, 6], [6, 2]), keys(0, 1, 1), MIXED)
    assert ranges == [BlockRange([7, 8], 2, 0), BlockRange([1, 2], 2, 1), BlockRange([3, 4, 5, 6], 0, 1)]


def test_a_group_may_have_nothing_to_load() -> None:
    assert blocks_of_load(load([], [0], [0]), keys(), FOURS) == []
    assert blocks_of_load(load([1, 2], [0, 2], [0, 2]), keys(1), MIXED) == [BlockRange([1, 2], 2, 1)]


@pytest.mark.parametrize("named", [(0, 1), (1, 0, 1), (0, 1, 1, 1)], ids=str)
def test_blocks_that_are_not_those_of_the_keys_are_refused(named: tuple[int, ...]) -> None:
    assert blocks_of_load(load([7, 8, 1, 2, 3, 4, 5, 6], [2, 6], [6, 2]), keys(*named), MIXED) is None


def test_a_page_that_is_never_stored_is_refused() -> None:
    assert blocks_of_load(load([6, 7, 8, 1, 2], [3, 2], [5, 2]), keys(0, 1), MIXED) is None
