"""Every property that makes bytes incompatible moves an engine to another world; a place on disk does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

from blockyard.cli.demo.tiny_model import TinyModel, cached_model
from blockyard.engine.vllm.setup import EngineSetup, prepare, why_detached

SMALL = TinyModel(layers=2, hidden=128, heads=2, kv_heads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cached_model(tmp_path_factory.mktemp("models"), SMALL)


def engine_config(model: Path, extra: dict[str, Any] | None = None, **changed: Any) -> VllmConfig:
    arguments: dict[str, Any] = {
        "dtype": "bfloat16",
        "prefix_caching_hash_algo": "sha256_cbor",
        "block_size": 16,
    }
    return EngineArgs(
        model=str(model),
        enforce_eager=True,
        kv_transfer_config={
            "kv_connector": "BlockyardConnector",
            "kv_connector_module_path": "blockyard.engine.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": dict(extra or {}),
        },
        **(arguments | changed),
    ).create_engine_config()


def set_up_from(config: VllmConfig) -> EngineSetup:
    spec = FullAttentionSpec(
        block_size=config.cache_config.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    )
    layers = ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"]
    return prepare(config, KVCacheConfig(64, [], [KVCacheGroupSpec(layers, spec)]))


def set_up(model: Path, extra: dict[str, Any] | None = None, **changed: Any) -> EngineSetup:
    return set_up_from(engine_config(model, extra, **changed))


def test_two_engines_of_one_model_share_a_world(model: Path) -> None:
    one, two = set_up(model), set_up(model)
    assert one.world.digest == two.world.digest
    assert one.world.private == ""
    assert one.identity.engine != two.identity.engine


def test_the_same_model_elsewhere_on_disk_is_the_same_world(model: Path, tmp_path: Path) -> None:
    elsewhere = cached_model(tmp_path, SMALL)
    assert elsewhere != model
    assert set_up(elsewhere).world.digest == set_up(model).world.digest


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float32"},
        {"block_size": 32},
        {"prefix_caching_hash_algo": "sha256"},
        {"hf_overrides": {"rope_theta": 5000.0}},
        {"kv_cache_dtype": "fp8"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_setting_of_the_engine_is_another_world(model: Path, changed: dict[str, Any]) -> None:
    assert set_up(model, **changed).world.digest != set_up(model).world.digest


def test_another_hash_seed_is_another_world(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set_up(model).world.digest
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert set_up(model).world.digest != before


def test_other_weights_of_the_same_shape_are_another_world(model: Path, tmp_path: Path) -> None:
    retrained = cached_model(tmp_path, replace(SMALL, seed=SMALL.seed + 1))
    assert set_up(retrained).world.digest != set_up(model).world.digest


def test_the_operators_salt_and_the_chunk_size_part_worlds(model: Path) -> None:
    plain = set_up(model).world.digest
    assert set_up(model, {"salt": "team-a"}).world.digest != plain
    assert set_up(model, {"chunk_tokens": 128}).world.digest != plain


def test_random_hashes_make_a_world_private_and_say_why(model: Path) -> None:
    one = set_up(model, prefix_caching_hash_algo="xxhash")
    two = set_up(model, prefix_caching_hash_algo="xxhash")
    assert one.world.digest != two.world.digest
    assert "xxhash" in one.world.private


def test_a_private_world_ends_with_its_engine_even_if_the_operator_named_it(model: Path) -> None:
    def named() -> VllmConfig:
        config = engine_config(model, prefix_caching_hash_algo="xxhash")
        assert config.kv_transfer_config is not None
        config.kv_transfer_config.engine_id = "pod-7"
        return config

    config = named()
    before = set_up_from(config)
    assert before.world.private
    assert before.world.digest == set_up_from(config).world.digest, "scheduler and rank of one engine"
    assert before.world.digest != set_up_from(named()).world.digest, "its next start"


def test_a_failed_load_is_recomputed_whatever_the_operator_left_unset(model: Path) -> None:
    config = engine_config(model)
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_load_failure_policy == "fail"
    set_up_from(config)
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"


def test_chunks_are_shorter_where_vllm_keeps_windows_at_an_interval(model: Path) -> None:
    config = engine_config(model, prefix_cache_retention_interval=160)
    assert why_detached(config, windows()) is None
    assert [group.chunk_tokens for group in prepare(config, windows()).groups] == [160, 160]


def test_blocks_per_chunk_that_vllm_would_refuse_leave_the_engine_detached(model: Path) -> None:
    config = engine_config(model, {"blocks_per_chunk": 16}, prefix_cache_retention_interval=160)
    assert "do not divide prefix_cache_retention_interval 160" in (why_detached(config, windows()) or "")


def windows() -> KVCacheConfig:
    pages: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    specs = [FullAttentionSpec(**pages), SlidingWindowSpec(**pages, sliding_window=100)]
    return KVCacheConfig(64, [], [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)])
