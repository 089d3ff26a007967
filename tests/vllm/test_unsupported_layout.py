"""A model whose cache we do not support serves as it would without us, and says why."""

import logging
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.cli.demo.byte_tokenizer import VOCABULARY_SIZE, write_json, write_tokenizer
from support.attached_engine import attached_engine, prompt
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def latent_attention_model(folder: Path) -> Path:
    """A tiny DeepSeek, whose cache keeps latents instead of keys and values; its weights are vLLM's dummies."""
    folder.mkdir()
    config = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    write_json(folder / "config.json", config)
    write_tokenizer(folder, 2048)
    return folder


def test_latent_attention_serves_detached_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("blockyard"), "handlers", [caplog.handler])
    model = latent_attention_model(tmp_path / "deepseek")
    dummy = {"load_format": "dummy", "dtype": "bfloat16", "max_length": 900}
    with WorkerProcess() as worker, attached_engine(model, worker, gpu_blocks=64, engine=dummy) as engine:
        tokens = prompt(1, 600)
        answer = engine.ask(tokens)
        again = engine.ask_afresh(tokens)
        assert again.token_ids == answer.token_ids
        assert again.num_cached_tokens == 0
        assert worker.metric("sessions") == 0
        assert "serving detached" in caplog.text
        assert "MLAAttentionSpec caches are not supported" in caplog.text
