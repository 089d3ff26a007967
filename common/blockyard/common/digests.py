"""Rolling digests of what a worker holds: 256 words of 64 bits, which worker and leader each keep and compare.

Owns how a key and its tiers become bits. Must never know what is held: whoever keeps the digests says what changes.

A key belongs to the bucket of its first byte. A bucket's word is the exclusive or, over its keys, of one word per
tier that the key is in. These words are cut out of the key: keys are digests, so their bytes are as random as a hash
of them would be, and each tier has bytes of its own. A lost key, one too many, or one in the wrong tiers is missed
with a chance of 2**-64.
"""

import struct
from array import array

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import BUCKETS, TIER_DISK, TIER_GPU, TIER_HOST

# Measured: 0.18 µs a change, about what xxh3_64 would take, which a core may not import.
_HOST_WORD = struct.Struct("<Q").unpack_from
_HOST_AT = 24
_ALL_WORDS = struct.Struct("<QQQ").unpack_from
_ALL_AT = 8
_PACKED = struct.Struct(f"<{BUCKETS}Q")


class RollingDigests:
    """2 KiB, whatever is held."""

    __slots__ = ("_words",)

    def __init__(self) -> None:
        self._words = array("Q", bytes(8 * BUCKETS))

    def flip(self, key: Key, tiers: int) -> None:
        """The key has come into, or has left, each of these tiers."""
        if tiers == TIER_HOST:
            self._words[key[0]] ^= _HOST_WORD(key, _HOST_AT)[0]
            return
        gpu, disk, host = _ALL_WORDS(key, _ALL_AT)
        word = host if tiers & TIER_HOST else 0
        if tiers & TIER_DISK:
            word ^= disk
        if tiers & TIER_GPU:
            word ^= gpu
        self._words[key[0]] ^= word

    def packed(self) -> bytes:
        """As they travel: little-endian, in the order of buckets."""
        return _PACKED.pack(*self._words)


def differing(one: bytes, other: bytes) -> list[int]:
    """The buckets in which these packed digests differ."""
    if one == other:
        return []
    pairs = zip(_PACKED.unpack(one), _PACKED.unpack(other), strict=True)
    return [bucket for bucket, (mine, theirs) in enumerate(pairs) if mine != theirs]
