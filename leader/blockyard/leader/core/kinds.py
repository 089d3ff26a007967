"""What chunks can be: a fingerprint and a group of it, as a small number that a placement carries.

Owns the numbers. Must never know a key. A number is never given back; beyond the limit every further kind is UNKNOWN,
and chunks of it are found as any, but no order can name them.
"""

from dataclasses import dataclass

from blockyard.common.identity import Fingerprint

KIND_BITS = 16
UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class ChunkKind:
    """Chunks of one world and KV cache group."""

    fingerprint: Fingerprint
    group: int


class Kinds:
    """Numbers for kinds, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[ChunkKind, int] = {}
        self._kinds: list[ChunkKind | None] = [None]

    def number(self, kind: ChunkKind) -> int:
        """The number of a kind, a new one where there is none yet."""
        number = self._numbers.get(kind)
        if number is not None:
            return number
        if len(self._kinds) >> KIND_BITS:
            return UNKNOWN
        self._kinds.append(kind)
        self._numbers[kind] = len(self._kinds) - 1
        return self._numbers[kind]

    def kind(self, number: int) -> ChunkKind | None:
        """What a number stands for; None for UNKNOWN."""
        return self._kinds[number]

    def of(self, fingerprint: Fingerprint) -> set[int]:
        """The numbers of all groups of a world."""
        return {number for kind, number in self._numbers.items() if kind.fingerprint == fingerprint}
