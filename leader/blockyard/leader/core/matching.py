"""Longest prefixes: how far into a run of keys each worker holds every one.

Owns this one question; changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import TIER_DISK, TIER_GPU, TIER_HOST
from blockyard.leader.core.ownership import ALL_TIERS, HOLDER_SHIFT, Ownership, Placements

_ANY = ALL_TIERS + 1
_BITS = (TIER_HOST, TIER_DISK, TIER_GPU, _ANY)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys from the first on that a node holds without a gap: in whatever tier, and in each one tier."""

    node: str
    length: int
    gpu: int
    host: int
    disk: int


def longest_prefixes(index: Ownership, placements: Callable[[Key], Placements], keys: Sequence[Key]) -> list[Prefix]:
    """One entry per node that holds at least the first key, the longest prefix first, then by name."""
    lengths = _lengths(placements, keys)
    found = [
        Prefix(node, ends[_ANY], ends.get(TIER_GPU, 0), ends.get(TIER_HOST, 0), ends.get(TIER_DISK, 0))
        for holder, ends in lengths.items()
        if (node := index.node_of(holder)) is not None
    ]
    return sorted(found, key=lambda prefix: (-prefix.length, prefix.node))


def _lengths(placements: Callable[[Key], Placements], keys: Sequence[Key]) -> dict[int, dict[int, int]]:
    """Per holder of the first key, the length of the run in each tier it began in."""
    lengths: dict[int, dict[int, int]] = {}
    running = _masks(placements(keys[0])) if keys else {}
    last = None
    for position, key in enumerate(keys):
        held = placements(key)
        # Shared tuples: a key held exactly as the one before it ends no run.
        if held is last:
            continue
        last = held
        masks = _masks(held)
        for holder, mask in list(running.items()):
            left = mask & masks.get(holder, 0)
            if left == mask:
                continue
            _end(lengths.setdefault(holder, {}), mask & ~left, position)
            if left:
                running[holder] = left
            else:
                del running[holder]
        if not running:
            return lengths
    for holder, mask in running.items():
        _end(lengths.setdefault(holder, {}), mask, len(keys))
    return lengths


def _masks(held: Placements) -> dict[int, int]:
    return {placement >> HOLDER_SHIFT: placement & ALL_TIERS | _ANY for placement in held}


def _end(ends: dict[int, int], mask: int, length: int) -> None:
    for bit in _BITS:
        if mask & bit:
            ends[bit] = length
