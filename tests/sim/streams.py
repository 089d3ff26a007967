"""Random numbers, one stream per component. Owns how a seed becomes streams.

Each stream depends on the seed and its own name alone: leaving one fault out does not change what others draw, which
is what makes a failing run shrink.
"""

from __future__ import annotations

import random


class Streams:
    """All streams of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def of(self, name: str) -> random.Random:
        """A fresh stream; the same name always begins the same."""
        return random.Random(f"{self.seed}/{name}")
