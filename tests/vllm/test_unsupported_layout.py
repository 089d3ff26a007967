"""A model whose cache we do not support yet serves as it would without us, and says why."""

import json
import logging
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import attached_engine, prompt
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def sliding_window_model(plain: Path, folder: Path) -> Path:
    """A tiny Gemma-3 with five sliding-window layers to one of full attention; its weights are vLLM's dummies."""
    folder.mkdir()
    for file in plain.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            (folder / file.name).write_bytes(file.read_bytes())
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 128,
        "max_position_embeddings": 16384,
        "vocab_size": 258,
        "torch_dtype": "bfloat16",
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 257,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_several_cache_groups_serve_detached_with_the_reason(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemma = sliding_window_model(model, tmp_path / "gemma")
    monkeypatch.setattr(logging.getLogger("blockyard"), "handlers", [caplog.handler])
    with (
        WorkerProcess() as worker,
        attached_engine(gemma, worker, gpu_blocks=3000, engine={"load_format": "dummy"}) as engine,
    ):
        tokens = prompt(1, 600)
        answer = engine.ask(tokens)
        assert engine.ask_afresh(tokens).token_ids == answer.token_ids
        assert engine.ask_afresh(tokens).num_cached_tokens == 0
        assert worker.metric("sessions") == 0
        assert "KV cache groups, 1 is supported" in caplog.text
