"""The tiny model: equal parameters give equal bytes, and its tokenizer is one token a byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the tiny model is made with torch")
pytest.importorskip("safetensors", reason="the tiny model is made with safetensors")

from blockyard.cli.demo import byte_tokenizer
from blockyard.cli.demo.tiny_model import TinyModel, cached_model, write_model

SMALL = TinyModel(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, max_length=512)
OTHER_WEIGHTS = TinyModel(
    layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, max_length=512, seed=2
)


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_equal_parameters_give_equal_bytes(tmp_path: Path) -> None:
    first = cached_model(tmp_path / "one", SMALL)
    second = cached_model(tmp_path / "two", SMALL)
    assert digests(first) == digests(second)
    assert first.name == second.name


def test_a_model_is_made_once(tmp_path: Path) -> None:
    first = cached_model(tmp_path, SMALL)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert cached_model(tmp_path, SMALL) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp


def test_another_seed_at_the_same_path_changes_only_the_weights(tmp_path: Path) -> None:
    write_model(tmp_path / "model", SMALL)
    before = digests(tmp_path / "model")
    write_model(tmp_path / "model", OTHER_WEIGHTS)
    after = digests(tmp_path / "model")
    assert {name for name in before if before[name] != after[name]} == {"model.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_configuration_says_what_was_asked_for(tmp_path: Path) -> None:
    config = json.loads((cached_model(tmp_path, SMALL) / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]) == (2, 2, 16)
    assert config["vocab_size"] == byte_tokenizer.VOCABULARY_SIZE
    assert SMALL.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2


def test_impossible_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="heads=6 must be a multiple of kv_heads=4"):
        TinyModel(heads=6, kv_heads=4)


def test_a_token_is_a_byte(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="reads the tokenizer file as vLLM does")
    tokenizer = tokenizers.Tokenizer.from_file(str(cached_model(tmp_path, SMALL) / "tokenizer.json"))
    text = "Straße \t\n 你好 \x00  two  spaces"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.get_vocab_size() == byte_tokenizer.VOCABULARY_SIZE
