"""Which cache layouts, ranks and versions may attach, and what is said of those that may not."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, supports_hma
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

import blockyard.engine.vllm as engine_vllm
from blockyard.engine.vllm import support

PAGES: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
FULL = FullAttentionSpec(**PAGES)
WINDOW = SlidingWindowSpec(**PAGES, sliding_window=128)
STATE = MambaSpec(block_size=16, shapes=((16, 4),), dtypes=(torch.float32,))
ONE_RANK = {
    "world_size": 1,
    "pipeline_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "nnodes": 1,
}


def refusal(*specs: Any, eagle: bool = False, **parallel: int) -> str | None:
    groups = [KVCacheGroupSpec([f"layer{i}"], spec, is_eagle_group=eagle) for i, spec in enumerate(specs)]
    config: Any = SimpleNamespace(parallel_config=SimpleNamespace(**(ONE_RANK | parallel)))
    return support.why_not(config, KVCacheConfig(64, [], groups), allow_untested=True)


@pytest.mark.parametrize(
    "specs",
    [(FULL,), (WINDOW,), (WINDOW, WINDOW, FULL), (UniformTypeKVCacheSpecs(16, {"a": FULL, "b": FULL}),)],
    ids=["full", "window", "several", "uniform"],
)
def test_full_attention_and_sliding_windows_attach(specs: tuple[Any, ...]) -> None:
    assert refusal(*specs) is None


@pytest.mark.parametrize(
    "spec",
    [
        MLAAttentionSpec(**PAGES),
        STATE,
        CrossAttentionSpec(**PAGES),
        ChunkedLocalAttentionSpec(**PAGES, attention_chunk_size=128),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_any_other_cache_is_named_alone_or_among_others(spec: Any) -> None:
    for specs in ((spec,), (FULL, spec)):
        assert type(spec).__name__ in (refusal(*specs) or "")


def test_a_model_without_a_cache_serves_detached() -> None:
    assert "no KV cache" in (refusal() or "")


def test_a_draft_models_group_among_others_serves_detached() -> None:
    assert "draft model" in (refusal(FULL, WINDOW, eagle=True) or "")


@pytest.mark.parametrize("name", [name for name in ONE_RANK if name != "world_size"])
def test_only_tensor_parallelism_on_one_node_attaches(name: str) -> None:
    assert refusal(FULL, world_size=4) is None
    assert name in (refusal(FULL, **{name: 2, "world_size": 2}) or "")


def test_more_ranks_than_a_worker_takes_serve_detached() -> None:
    assert "17 ranks" in (refusal(FULL, world_size=17) or "")


def test_an_untested_version_attaches_only_if_it_is_allowed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "engine_version", lambda: "0.99.1")
    config: Any = SimpleNamespace(parallel_config=SimpleNamespace(**ONE_RANK))
    cache = KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], FULL)])
    reason = support.why_not(config, cache, allow_untested=False)
    assert reason is not None
    assert "0.99.1" in reason
    assert "allow_untested" in reason
    assert support.why_not(config, cache, allow_untested=True) is None


def test_a_vllm_without_the_parts_of_our_connector_gets_one_that_stays_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "blockyard.engine.vllm.connector", None)
    stranger = engine_vllm._connector()
    assert supports_hma(stranger)
    config: Any = SimpleNamespace(kv_transfer_config=SimpleNamespace())
    with caplog.at_level("WARNING", logger="blockyard"):
        logging.getLogger("blockyard").addHandler(caplog.handler)
        connector = stranger(config, KVConnectorRole.SCHEDULER, KVCacheConfig(64, [], []))
    assert "serving detached" in caplog.text
    assert connector.get_num_new_matched_tokens(None, 0) == (0, False)
