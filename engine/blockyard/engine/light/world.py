"""What a light engine's chunks contain. Owns geometry, keys and bytes, all derived from names.

A conversation's chunk depends on the whole conversation before it, as attention keys and values do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch

from blockyard.common.identity import chunk_key, fingerprint

TOKENS_PER_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Geometry:
    """Page bytes of each tensor, blocks of the engine, blocks in a chunk."""

    name: str
    pages: tuple[int, ...]
    blocks: int
    blocks_per_chunk: int

    @property
    def world(self) -> bytes:
        """Fingerprint: two geometries share nothing."""
        fields = {"engine": "light", "pages": str(self.pages), "chunk": str(self.blocks_per_chunk)}
        return fingerprint(fields)

    @property
    def chunks(self) -> int:
        """How many chunks the engine's blocks hold."""
        return self.blocks // self.blocks_per_chunk


GEOMETRIES = {
    geometry.name: geometry
    for geometry in (
        Geometry("wide", pages=(16384,) * 8, blocks=256, blocks_per_chunk=8),
        Geometry("odd", pages=(4097, 12, 1000), blocks=256, blocks_per_chunk=16),
    )
}
"""One as usual, and one whose pages fit nothing."""


def hashes_of(conversation: str, chunks: int) -> list[bytes]:
    """Chained hash of each chunk of a conversation."""
    hashes = []
    digest = b""
    for index in range(chunks):
        digest = blake2b(digest + f"{conversation}:{index}".encode(), digest_size=32).digest()
        hashes.append(digest)
    return hashes


def keys_of(geometry: Geometry, hashes: Sequence[bytes]) -> list[bytes]:
    """Keys of chunks."""
    return [chunk_key(geometry.world, one, 0) for one in hashes]


def contents_of(geometry: Geometry, chunk_hash: bytes) -> list[torch.Tensor]:
    """Per tensor, all pages of a chunk: random bytes that only its hash decides."""
    generator = torch.Generator().manual_seed(int.from_bytes(chunk_hash[:8], "little") >> 1)
    return [
        torch.randint(-128, 128, (geometry.blocks_per_chunk, page), dtype=torch.int8, generator=generator)
        for page in geometry.pages
    ]
