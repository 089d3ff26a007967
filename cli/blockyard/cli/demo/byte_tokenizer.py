"""Owns the files of a tokenizer with one token a byte: no merges, no training, nothing to download.

Ids 0-255 are the bytes themselves, so a prompt of n ASCII characters is n tokens and a test can write token
ids directly. It must never know the model's shape.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOS_ID = 256
EOS_ID = 257
VOCABULARY_SIZE = 258
BOS = "<s>"
EOS = "</s>"

# No instruction was ever trained into random weights: the template only has to keep turns a common prefix of
# the next request, which is what a prefix cache sees of a chat.
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level tokenizer file, by byte value."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]


def write_tokenizer(directory: Path, max_length: int) -> None:
    write_json(directory / "tokenizer.json", _tokenizer())
    write_json(directory / "tokenizer_config.json", _tokenizer_config(max_length))


def _tokenizer() -> dict[str, Any]:
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(BOS_ID, BOS), _special(EOS_ID, EOS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _special(token_id: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}


def _tokenizer_config(max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=True) + "\n", encoding="utf-8")
