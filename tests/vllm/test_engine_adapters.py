"""LoRA adapters: a request gets back what was computed with its own adapter, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from safetensors.torch import save_file

from blockyard.cli.demo.tiny_model import TinyModel, cached_model
from blockyard.engine.vllm.adapters import SETTLED_SECONDS
from support.attached_engine import CHUNK, TOKENS, AttachedEngine, attached_engine, prompt
from support.vllm_inproc import Generated, settle
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

MODEL = TinyModel(layers=2, hidden=256, heads=4, kv_heads=2)
PROMPT = prompt(1, 600)
WHOLE = 600 // CHUNK * CHUNK
RANK = 8


def write_adapter(folder: Path, seed: int) -> Path:
    """An adapter of the keys' and values' projections, strong enough to change every answer."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    keys = MODEL.kv_heads * MODEL.head_dim
    weights = {}
    for layer in range(MODEL.layers):
        for part in ("k_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, MODEL.hidden, generator=generator) * 0.2
            weights[f"{name}.lora_B.weight"] = torch.randn(keys, RANK, generator=generator) * 0.2
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["k_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / name, seed) for seed, name in enumerate(("sql", "law"), start=1)}


@pytest.fixture(scope="module")
def engine(adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttachedEngine]:
    """Its start is later than the adapters' last change by as much as it takes to be believed."""
    model = cached_model(tmp_path_factory.mktemp("models"), MODEL)
    time.sleep(SETTLED_SECONDS)
    settings = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}
    with (
        WorkerProcess(host_pool="64MiB", slab_size="8MiB") as worker,
        attached_engine(model, worker, gpu_blocks=96, engine=settings) as engine,
    ):
        engine.wait_attached()
        yield engine


def ask(engine: AttachedEngine, path: Path | None, name: str = "adapter", number: int = 1) -> Generated:
    """The answer with an adapter, and nothing in the engine's own cache before."""
    from vllm.lora.request import LoRARequest

    from vllm import SamplingParams

    engine.lose_gpu_cache()
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, seed=0)
    lora: Any = None if path is None else LoRARequest(name, number, str(path))
    (answer,) = engine.llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False, lora_request=lora)
    settle(engine.llm)
    return Generated(list(answer.outputs[0].token_ids), answer.num_cached_tokens or 0)


def test_each_adapter_gets_its_own_blocks_back(engine: AttachedEngine, adapters: dict[str, Path]) -> None:
    """The two have one name, as two adapters of two teams may."""
    with_sql = ask(engine, adapters["sql"])
    with_law = ask(engine, adapters["law"], number=2)
    plain = ask(engine, None)
    assert [answer.num_cached_tokens for answer in (with_sql, with_law, plain)] == [0, 0, 0]
    assert len({tuple(answer.token_ids) for answer in (with_sql, with_law, plain)}) == 3
    for path, number, first in ((adapters["sql"], 1, with_sql), (adapters["law"], 2, with_law), (None, 0, plain)):
        again = ask(engine, path, number=number)
        assert again.num_cached_tokens == WHOLE
        assert again.token_ids == first.token_ids
    engine.check_idle_books()


def test_an_adapter_whose_files_change_is_neither_stored_nor_loaded(
    engine: AttachedEngine, adapters: dict[str, Path]
) -> None:
    right = ask(engine, adapters["law"], number=2)
    write_adapter(adapters["law"], seed=3)
    stored = engine.stored()
    again = ask(engine, adapters["law"], number=2)
    assert again.num_cached_tokens == 0
    assert again.token_ids == right.token_ids, "vLLM still has the old one in memory"
    assert engine.stored() == stored
    assert ask(engine, adapters["sql"]).num_cached_tokens == WHOLE
