"""Keys and lengths of generated chains. Owns the arithmetic that makes both from a chain's number, so that nobody
has to store them; knows no worker.

A chain is a prompt, or a conversation, as its chunks: position 0 is its beginning. Chains below `shared` are those
that many workers hold; every other one belongs to the worker in its upper half.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import xxhash

LONGEST = 512
"""Chunks of the longest chain; with 256 tokens a chunk, a prompt of 131,072 tokens."""

_pack = struct.Struct("<QI").pack
_half = xxhash.xxh3_128_digest

_SHORT_SHARE, _MEDIUM_SHARE = 70, 95
_SPREAD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def chunk_key(chain: int, position: int) -> bytes:
    """The key of one chunk: 32 bytes that no other chunk has."""
    place = _pack(chain, position)
    return _half(place, 1) + _half(place, 2)


def chain_keys(chain: int, count: int) -> list[bytes]:
    """Keys of the first chunks of a chain."""
    return [chunk_key(chain, position) for position in range(count)]


def full_length(chain: int) -> int:
    """How long a chain gets: most are short, one in twenty is the longest that there is."""
    mixed = (chain * _SPREAD & _MASK) >> 32
    share = mixed % 100
    if share < _SHORT_SHARE:
        return 4 + mixed // 100 % 13
    if share < _MEDIUM_SHARE:
        return 32 + mixed // 100 % 97
    return LONGEST


def own_chain(worker: int, number: int) -> int:
    """The number-th chain that only this worker holds."""
    return (worker + 1) << 32 | number


@dataclass(frozen=True, slots=True)
class Popularity:
    """Which chains are shared and how often each is asked for: Zipf's law by number, 0 the most popular."""

    shared: int
    share: float
    """Of new chains, the part that is drawn from the shared ones."""
    weights: tuple[float, ...]

    @staticmethod
    def zipf(shared: int, share: float, exponent: float) -> Popularity:
        """The weight of number n is (n + 1) ** -exponent."""
        return Popularity(shared, share, tuple(accumulate((n + 1) ** -exponent for n in range(shared))))

    def draw(self, random: Random) -> int | None:
        """A shared chain, or None: the chain is to be the worker's own."""
        if random.random() >= self.share:
            return None
        return random.choices(range(self.shared), cum_weights=self.weights)[0]
