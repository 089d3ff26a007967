"""Block identity: fingerprints and chunk keys.

Owns how bytes are named. Must never know where they lie, who holds them, or what an engine is.
"""

from collections.abc import Mapping
from hashlib import blake2b

DIGEST_BYTES = 32
FORMAT_VERSION = 1
"""Version of what a chunk's bytes mean; part of every fingerprint."""

Key = bytes
"""32 bytes naming one chunk of one KV cache group in one world."""

Fingerprint = bytes
"""32 bytes naming a world: all that makes two engines' bytes interchangeable."""


def fingerprint(fields: Mapping[str, str]) -> Fingerprint:
    """Digest of the named compatibility fields; order does not matter, every value does.

    Each name and value is length-prefixed, so no two different mappings share an encoding.
    """
    digest = blake2b(digest_size=DIGEST_BYTES, person=b"blockyard-world")
    digest.update(FORMAT_VERSION.to_bytes(4, "little"))
    for name in sorted(fields):
        for part in (name.encode(), fields[name].encode()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def chunk_key(world: Fingerprint, block_hash: bytes, group: int) -> Key:
    """Key of the chunk whose last block has `block_hash` (the engine's chained hash) in `group`."""
    return blake2b(block_hash + group.to_bytes(4, "big"), digest_size=DIGEST_BYTES, key=world).digest()


def split_keys(blob: bytes) -> list[Key]:
    """Keys of a blob made by joining them; raises ValueError on a ragged one."""
    if len(blob) % DIGEST_BYTES:
        raise ValueError(f"key blob has {len(blob)} bytes, not a multiple of {DIGEST_BYTES}")
    return [blob[i : i + DIGEST_BYTES] for i in range(0, len(blob), DIGEST_BYTES)]
