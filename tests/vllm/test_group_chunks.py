"""Chunks of several cache groups: which pages are kept, which chunks are asked for, which of the answer stay pinned."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.kv_offload.base import OffloadKey, make_offload_key

from blockyard.common.messages.states import KeyState
from blockyard.engine.jobs import BlockRange
from blockyard.engine.scheduler_client import Grant
from blockyard.engine.vllm.chains import Chain
from blockyard.engine.vllm.groups import CacheGroup, cache_groups, largest_that_divides, resumes_at_the_failure
from blockyard.engine.vllm.lookups import Answered, RequestState, keys_of, stretches_of

BLOCK = 16
PAGES: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}


def window_spec(window: int, block: int = BLOCK) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block, **PAGES, sliding_window=window)


def groups_of(*specs: Any, pages: int = 4) -> tuple[CacheGroup, ...]:
    config: Any = SimpleNamespace(
        cache=SimpleNamespace(blocks_per_chunk=pages),
        groups=[SimpleNamespace(group_id=i, tokens_per_block=spec.block_size) for i, spec in enumerate(specs)],
    )
    return cache_groups(config, KVCacheConfig(64, [], [KVCacheGroupSpec([f"l{i}"], s) for i, s in enumerate(specs)]))


@dataclass
class State:
    """What vLLM keeps of a request in one group."""

    offload_keys: list[OffloadKey] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    next_stored_chunk_idx: int = 0


def chain(group: CacheGroup, chunks: int) -> Chain:
    return Chain(group, State([make_offload_key(bytes([i]) * 32, group.number) for i in range(chunks)]))


def request(*groups: CacheGroup, chunks: int = 8) -> RequestState:
    return RequestState(b"w" * 32, tuple(chain(group, chunks) for group in groups))


FULL = CacheGroup(1, BLOCK, 4)
WINDOW = CacheGroup(0, BLOCK, 4, window=100)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 31, 32, 33, 49, 63, 64, 65, 200])
@pytest.mark.parametrize("before_the_end", [0, 1])
def test_the_pages_that_are_kept_are_those_that_vllm_may_load(window: int, before_the_end: int) -> None:
    """A load ends at a chunk's end, or one token before it; vLLM gives it blocks from the window's first token on."""
    _, group = groups_of(FullAttentionSpec(block_size=BLOCK, **PAGES), window_spec(window))
    end = 5 * group.chunk_tokens - before_the_end
    skipped = SlidingWindowManager.get_num_skipped_tokens(
        SimpleNamespace(sliding_window=window, extra_retained_tokens=0), end
    )
    first_block = skipped // BLOCK
    last_chunk = 4
    if first_block // 4 < last_chunk:
        assert group.first_page == 0, "the window reaches over whole chunks"
    elif first_block // 4 == last_chunk:
        assert first_block % 4 >= group.first_page
    assert group.first_chunk_needed(end) <= first_block // 4


def test_chunks_of_different_lengths_keep_every_page() -> None:
    _, group = groups_of(FullAttentionSpec(block_size=2 * BLOCK, **PAGES), window_spec(20))
    assert group.first_page == 0


@pytest.mark.parametrize(
    ("interval", "blocks", "found"),
    [
        (None, [16], 16),
        (0, [16], 16),
        (1024, [16], 16),
        (640, [16], 10),
        (96, [16, 32], 3),
        (48, [32], 0),
        (48, [], 16),
    ],
)
def test_chunks_of_windows_divide_the_interval_at_which_vllm_keeps_them(
    interval: int | None, blocks: list[int], found: int
) -> None:
    assert largest_that_divides(interval, 16, blocks) == found


def test_only_one_group_of_full_attention_goes_on_from_what_did_load() -> None:
    full = FullAttentionSpec(block_size=BLOCK, **PAGES)
    assert resumes_at_the_failure(groups_of(full))
    assert not resumes_at_the_failure(groups_of(window_spec(64)))
    assert not resumes_at_the_failure(groups_of(full, full))


def test_a_chunk_is_stored_with_the_pages_that_are_kept() -> None:
    group = CacheGroup(0, BLOCK, 4, window=20, first_page=2)
    state = State([make_offload_key(b"a" * 32, 0)] * 2, [0, 0, 7, 8, 3, 0, 5, 6])
    assert Chain(group, state).blocks_to_store(0) == BlockRange([7, 8], 2, 0)
    assert Chain(group, state).blocks_to_store(1) == BlockRange([5, 6], 2, 0)


@pytest.mark.parametrize("blocks", [[1, 2, 0, 4], [1, 2, 3, 0], [1, 2, 3]], ids=str)
def test_a_chunk_without_one_of_these_is_not_stored(blocks: list[int]) -> None:
    group = CacheGroup(0, BLOCK, 4, window=20, first_page=2)
    assert Chain(group, State(block_ids=blocks)).blocks_to_store(0) is None


def test_what_a_window_left_behind_long_ago_is_not_stored() -> None:
    """vLLM marks blocks that were given away only among those that it has not stored yet."""
    blocks = [1, 2, 3, 4, 5, 6, 7, 8]
    assert Chain(WINDOW, State(block_ids=blocks, next_stored_chunk_idx=1)).blocks_to_store(0) is None
    assert Chain(WINDOW, State(block_ids=blocks, next_stored_chunk_idx=1)).blocks_to_store(1) is not None
    assert Chain(FULL, State(block_ids=blocks, next_stored_chunk_idx=2)).blocks_to_store(0) is not None


def test_full_attention_is_asked_first_and_windows_need_no_prefix() -> None:
    state = request(WINDOW, FULL)
    runs = [state.run_of(stretch) for stretch in state.wanted(130)]
    assert [(run.group, run.start, run.prefix) for run in runs] == [(1, 2, True), (0, 2, False)]
    assert all(run.parent for run in runs)


def test_nothing_is_asked_when_one_group_has_no_chunk_left() -> None:
    long = CacheGroup(2, 8 * BLOCK, 4)
    state = RequestState(b"w" * 32, (chain(FULL, 8), chain(long, 0)))
    assert state.wanted(0) == ()


def test_a_lost_first_chunk_is_hopeless_for_full_attention_alone() -> None:
    state = request(WINDOW, FULL)
    state.forbidden.add(state.chains[0].keys[0])
    assert not state.hopeless(state.wanted(0))
    state.forbidden.add(state.chains[1].keys[0])
    assert state.hopeless(state.wanted(0))


@pytest.mark.parametrize(("computed", "loaded", "first"), [(0, 512, 6), (0, 511, 6), (384, 128, 6), (448, 64, 7)])
def test_only_the_last_window_stays_pinned(computed: int, loaded: int, first: int) -> None:
    state = request(WINDOW, FULL)
    keys = keys_of(state.wanted(computed))
    state.answered = Answered(Grant(1, b"", 1), dict.fromkeys(keys, KeyState.HIT), 9.0)
    surplus = set(state.beyond_need(computed, loaded))
    assert surplus == set(state.chains[0].keys[computed // 64 : first])


def test_a_shorter_load_leaves_out_what_lies_behind_it() -> None:
    state = request(FULL)
    keys = keys_of(state.wanted(0))
    state.answered = Answered(Grant(1, b"", 1), dict.fromkeys(keys, KeyState.HIT), 9.0)
    assert state.beyond_need(0, 128) == list(keys[2:])


def test_neighbours_of_one_group_make_one_run() -> None:
    state = request(WINDOW, FULL)
    window, full = (one.keys for one in state.chains)
    placed = list(state.placed((window[2], window[3], window[6], full[0], full[1])))
    found = [(s.chain.group.number, s.first, len(s.keys)) for s in stretches_of(placed)]
    assert found == [(0, 2, 2), (0, 6, 1), (1, 0, 2)]
    assert stretches_of([]) == []
