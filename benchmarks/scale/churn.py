"""What one generated worker holds and how that changes. Owns which chains it holds how far; makes no messages.

Chains grow at their ends and lose their ends, so that a held chunk's whole prefix is held. The warm ones grow, the cold
ones shrink; a chain that is as long as it gets makes the next one begin. Beyond the capacity each added chunk costs
another one, as in a full pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from scale.keys import Popularity, chunk_key, full_length, own_chain

_SKEW = 4
"""How far from the warm or the cold end is drawn as u ** 4, within half of the chains: half of all growth is in the
warmest thirty-second, and what has just begun is not lost soon."""

_DRAWS = 8
"""Tries to draw a shared chain that is not held yet; then it is one of the worker's own."""


class Churn:
    """One worker's chains; all that happens follows from the seed."""

    def __init__(self, worker: int, capacity: int, popularity: Popularity, seed: int) -> None:
        self._worker = worker
        self._capacity = capacity
        self._popularity = popularity
        self._random = Random(f"{seed}/{worker}")
        self._lengths: dict[int, int] = {}
        self._by_warmth: list[int] = []
        self._next_own = 0
        self.held = 0

    def fill(self) -> None:
        """Hold as much as there is room for, at once."""
        while self.held < self._capacity:
            chain = self._begin()
            self._lengths[chain] = length = min(full_length(chain), self._capacity - self.held)
            self.held += length

    def change(self) -> tuple[bytes, bool]:
        """The next change: a key, and whether it is held from now on."""
        if self.held > self._capacity:
            return self._lose(), False
        return self._gain(), True

    def begin_own(self) -> bytes:
        """Add the first chunk of a new chain of the worker's own."""
        return self._grow(self._new(None))

    def held_keys(self) -> Iterator[bytes]:
        """All that is held."""
        for chain, length in self._lengths.items():
            for position in range(length):
                yield chunk_key(chain, position)

    def chains(self) -> dict[int, int]:
        """Chains and how many chunks of each are held."""
        return dict(self._lengths)

    def _gain(self) -> bytes:
        if self._by_warmth:
            chain = self._by_warmth[-1 - self._distance()]
            if self._lengths[chain] < full_length(chain):
                return self._grow(chain)
        return self._grow(self._begin())

    def _lose(self) -> bytes:
        place = self._distance()
        chain = self._by_warmth[place]
        self._lengths[chain] = position = self._lengths[chain] - 1
        self.held -= 1
        if not position:
            del self._lengths[chain], self._by_warmth[place]
        return chunk_key(chain, position)

    def _distance(self) -> int:
        return int((len(self._by_warmth) + 1) // 2 * self._random.random() ** _SKEW)

    def _grow(self, chain: int) -> bytes:
        position = self._lengths[chain]
        self._lengths[chain] = position + 1
        self.held += 1
        return chunk_key(chain, position)

    def _begin(self) -> int:
        for _ in range(_DRAWS):
            drawn = self._popularity.draw(self._random)
            if drawn is None or drawn not in self._lengths:
                return self._new(drawn)
        return self._new(None)

    def _new(self, chain: int | None) -> int:
        if chain is None:
            chain = own_chain(self._worker, self._next_own)
            self._next_own += 1
        self._lengths[chain] = 0
        self._by_warmth.append(chain)
        return chain
