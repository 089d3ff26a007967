"""Waits between tries. Owns how they grow; never waits."""

from __future__ import annotations

from collections.abc import Iterator

_FIRST_S = 0.05
_LONGEST_S = 1.0


def backoffs() -> Iterator[float]:
    """Doubling, capped, without end (the deadline is the caller's)."""
    wait = _FIRST_S
    while True:
        yield wait
        wait = min(wait * 2, _LONGEST_S)
