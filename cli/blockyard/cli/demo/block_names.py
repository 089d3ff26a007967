"""Owns how someone outside an engine names the chunks that it stores, as a router does to ask the leader.

Two digests on top of each other: vLLM's chained hash of a block's tokens, and Blockyard's key of a chunk in the
engine's world. It must never know where a chunk lies.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256

import cbor2

from blockyard.common.identity import Fingerprint, Key, chunk_key

# What vLLM seeds the chain with unless PYTHONHASHSEED is set; with `sha256_cbor` it is the same everywhere.
VLLM_SEED = "vllm-none-hash"
FIRST_GROUP = 0


def block_hashes(token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """vLLM's `sha256_cbor` hash of each full block, without LoRA, images or cache salt."""
    hashes: list[bytes] = []
    parent = _digest(os.environ.get("PYTHONHASHSEED", VLLM_SEED))
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = _digest((parent, tuple(token_ids[end - block_size : end]), None))
        hashes.append(parent)
    return hashes


def chunk_keys(world: Fingerprint, token_ids: Sequence[int], block_size: int, blocks_per_chunk: int) -> list[Key]:
    """Keys of the whole chunks of a prompt, first chunk first; a chunk is named by its last block."""
    last_blocks = block_hashes(token_ids, block_size)[blocks_per_chunk - 1 :: blocks_per_chunk]
    return [chunk_key(world, block, FIRST_GROUP) for block in last_blocks]


def _digest(value: object) -> bytes:
    return sha256(cbor2.dumps(value, canonical=True)).digest()
