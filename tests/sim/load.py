"""What engines are asked to do: conversations that share beginnings and grow turn by turn. Owns the keys of a world."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from blockyard.common.identity import Fingerprint, Key, chunk_key, fingerprint
from blockyard.common.slot_table import PAGE

_LONGEST = 10


@dataclass(frozen=True, slots=True)
class Shape:
    """One world's geometry. `area_bytes` is one rank's share of a chunk, by KV cache group."""

    name: str
    world: Fingerprint
    ranks: int
    area_bytes: tuple[int, ...]

    @property
    def groups(self) -> range:
        return range(len(self.area_bytes))

    def key(self, path: str, group: int) -> Key:
        return chunk_key(self.world, path.encode(), group)


def shapes(draw: random.Random) -> list[Shape]:
    """Two worlds with slots of different size; one may have two groups."""
    two_groups = draw.random() < 0.3
    return [
        Shape("small", fingerprint({"model": "small"}), draw.choice([1, 2]), (2 * PAGE,)),
        Shape(
            "large",
            fingerprint({"model": "large"}),
            draw.choice([1, 2]),
            (3 * PAGE, PAGE) if two_groups else (3 * PAGE,),
        ),
    ]


@dataclass(slots=True)
class Conversations:
    """All of one world: a chunk is named by its path, so two that begin alike share keys."""

    shape: Shape
    draw: random.Random
    _open: list[list[str]] = field(default_factory=list)
    _made: int = 0

    def turn(self, draw: random.Random) -> list[str]:
        """The chunks of the next request, first chunk first: an old conversation grown, or a new one."""
        if self._open and draw.random() < 0.7:
            talk = draw.choice(self._open)
        else:
            talk = [f"system{draw.randrange(3)}/{i}" for i in range(draw.randrange(3))]
            self._open.append(talk)
            if len(self._open) > 6:
                self._open.pop(0)
        for _ in range(draw.randrange(3) + (not talk)):
            if len(talk) < _LONGEST:
                self._made += 1
                talk.append(f"turn{self._made}")
        return list(talk)
