"""Owns the tiny Llama that stands in for a real model on a machine without a GPU. It never knows vLLM.

Random weights are enough to show a cache: prefill costs real time, and greedy tokens are a fingerprint of the
keys and values that produced them. The attention projections are scaled up, because with plain random weights
attention is so flat that a corrupted KV block leaves every greedy token as it was, and a test of corruption
would prove nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from blockyard.cli.demo.byte_tokenizer import BOS_ID, EOS_ID, VOCABULARY_SIZE, write_json, write_tokenizer

# Part of the cache key: bump it whenever the same parameters would give other files.
FORMAT = 1
WEIGHT_STD = 0.02
BYTES_PER_ELEMENT = 2


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Everything that decides the files, so that equal parameters give equal bytes."""

    layers: int = 8
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    intermediate: int = 1536
    max_length: int = 16384
    seed: int = 1
    attention_scale: float = 8.0

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads != 0:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if min(self.layers, self.hidden, self.head_dim, self.intermediate, self.max_length) < 1:
            raise ValueError(f"every size of a tiny model must be at least 1: {self}")

    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_ELEMENT


def cached_model(cache_dir: Path, model: TinyModel | None = None) -> Path:
    """The directory of this model under `cache_dir`, made at the first call."""
    model = model or TinyModel()
    parameters = json.dumps({"format": FORMAT, **asdict(model)}, sort_keys=True)
    digest = hashlib.sha256(parameters.encode()).hexdigest()[:12]
    directory = cache_dir / f"tiny-llama-{digest}"
    if not directory.exists():
        write_model(directory, model)
    return directory


def write_model(directory: Path, model: TinyModel) -> None:
    """Writes the model at `directory`, replacing what is there: same path, other weights.

    Built beside its place and renamed, so that a killed writer never leaves half a model that looks whole.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        save_file(_weights(model), draft / "model.safetensors", metadata={"format": "pt"})
        write_json(draft / "config.json", _config(model))
        write_json(draft / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
        write_tokenizer(draft, model.max_length)
        draft.chmod(0o755)
        _replace(draft, directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _replace(draft: Path, directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    try:
        os.rename(draft, directory)
    except OSError:
        # Two processes made the same model at once; the other one's files are as good as ours.
        if not (directory / "config.json").exists():
            raise


def _weights(model: TinyModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(model.seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator, dtype=torch.float32)
        return (values * (WEIGHT_STD * scale)).to(torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(model.hidden, dtype=torch.bfloat16)

    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    scale = model.attention_scale
    weights = {"model.embed_tokens.weight": matrix(VOCABULARY_SIZE, model.hidden)}
    for index in range(model.layers):
        layer = f"model.layers.{index}"
        weights |= {
            f"{layer}.input_layernorm.weight": ones(),
            f"{layer}.self_attn.q_proj.weight": matrix(queries, model.hidden, scale),
            f"{layer}.self_attn.k_proj.weight": matrix(keys, model.hidden, scale),
            f"{layer}.self_attn.v_proj.weight": matrix(keys, model.hidden, scale),
            f"{layer}.self_attn.o_proj.weight": matrix(model.hidden, queries, scale),
            f"{layer}.post_attention_layernorm.weight": ones(),
            f"{layer}.mlp.gate_proj.weight": matrix(model.intermediate, model.hidden),
            f"{layer}.mlp.up_proj.weight": matrix(model.intermediate, model.hidden),
            f"{layer}.mlp.down_proj.weight": matrix(model.hidden, model.intermediate),
        }
    weights["model.norm.weight"] = ones()
    weights["lm_head.weight"] = matrix(VOCABULARY_SIZE, model.hidden)
    return weights


def _config(model: TinyModel) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY_SIZE,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_length,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": WEIGHT_STD,
        "use_cache": True,
    }


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), TinyModel())
