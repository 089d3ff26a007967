"""Owns the files of a tiny Gemma-3: most layers see a sliding window, the rest all of the prompt.

vLLM keeps such a model's cache in several groups, each with blocks of its own. Queries and keys are normalised in this
family, so their norms are scaled up instead of their projections: attention is then sharp enough that one wrong block
of any group changes the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from blockyard.cli.demo.byte_tokenizer import BOS_ID, EOS_ID, VOCABULARY_SIZE, write_json, write_tokenizer

WEIGHT_STD = 0.02
MAX_LENGTH = 8192


@dataclass(frozen=True, slots=True)
class TinyGemma:
    """Every layer whose number is a multiple of `pattern` has full attention, counted from 1."""

    layers: int = 6
    pattern: int = 3
    window: int = 300
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 512
    seed: int = 1
    attention_scale: float = 8.0
    norm: float = 2.0


def write_gemma(directory: Path, model: TinyGemma | None = None) -> Path:
    """The model's files in `directory`, which must not exist."""
    model = model or TinyGemma()
    directory.mkdir(parents=True)
    save_file(_weights(model), directory / "model.safetensors", metadata={"format": "pt"})
    write_json(directory / "config.json", _config(model))
    write_json(directory / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
    write_tokenizer(directory, MAX_LENGTH)
    return directory


def _weights(model: TinyGemma) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(model.seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (WEIGHT_STD * scale)

    def norm(size: int, factor: float) -> torch.Tensor:
        """A norm that multiplies by `factor`: this family's norms multiply by one more than their weight."""
        return torch.full((size,), factor - 1.0)

    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    weights = {"model.embed_tokens.weight": matrix(VOCABULARY_SIZE, model.hidden)}
    for index in range(model.layers):
        layer = f"model.layers.{index}"
        weights |= {
            f"{layer}.input_layernorm.weight": norm(model.hidden, 1.0),
            f"{layer}.self_attn.q_proj.weight": matrix(queries, model.hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(keys, model.hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(keys, model.hidden, model.attention_scale),
            f"{layer}.self_attn.o_proj.weight": matrix(model.hidden, queries, model.attention_scale),
            f"{layer}.self_attn.q_norm.weight": norm(model.head_dim, model.norm),
            f"{layer}.self_attn.k_norm.weight": norm(model.head_dim, model.norm),
            f"{layer}.post_attention_layernorm.weight": norm(model.hidden, 1.0),
            f"{layer}.pre_feedforward_layernorm.weight": norm(model.hidden, 1.0),
            f"{layer}.post_feedforward_layernorm.weight": norm(model.hidden, 0.5),
            f"{layer}.mlp.gate_proj.weight": matrix(model.intermediate, model.hidden),
            f"{layer}.mlp.up_proj.weight": matrix(model.intermediate, model.hidden),
            f"{layer}.mlp.down_proj.weight": matrix(model.hidden, model.intermediate),
        }
    weights["model.norm.weight"] = norm(model.hidden, 1.0)
    weights["lm_head.weight"] = matrix(VOCABULARY_SIZE, model.hidden)
    return weights


def _config(model: TinyGemma) -> dict[str, Any]:
    kinds = ["full_attention" if (i + 1) % model.pattern == 0 else "sliding_attention" for i in range(model.layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY_SIZE,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "query_pre_attn_scalar": model.head_dim,
        "layer_types": kinds,
        "sliding_window": model.window,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
