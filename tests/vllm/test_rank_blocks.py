"""GPU blocks of a transfer are split by chunk."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.kv_offload.base import GPULoadStoreSpec

from blockyard.engine.jobs import BlockRange
from blockyard.engine.vllm.rank import _blocks_of_chunks


def spec(block_ids: list[int], first: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(block_ids, group_sizes=[len(block_ids)], block_indices=[first])


def test_whole_chunks() -> None:
    assert _blocks_of_chunks(spec([5, 6, 9, 2], 4), 2, 2, 0) == [
        BlockRange([5, 6], 0, 0),
        BlockRange([9, 2], 0, 0),
    ]


def test_a_load_that_begins_inside_a_chunk() -> None:
    ranges = _blocks_of_chunks(spec([7, 9, 3, 4, 5, 6], 6), 2, 4, 0)
    assert ranges == [BlockRange([7, 9], 2, 0), BlockRange([3, 4, 5, 6], 0, 0)]


def test_a_load_that_ends_inside_a_chunk() -> None:
    assert _blocks_of_chunks(spec([1, 2, 3], 0), 2, 2, 0) == [BlockRange([1, 2], 0, 0), BlockRange([3], 0, 0)]


def test_nothing_to_load() -> None:
    assert _blocks_of_chunks(spec([], 0), 0, 4, 0) == []
