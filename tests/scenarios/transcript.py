"""The lines that a command brings about. Owns joining and wrapping, so that a transcript is short; knows no meaning.

What is said twice in a row under one head becomes one line: `n1 slots: 0 a filling g1; 1 b filling g2`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 110
NOTHING = "ok"


class Transcript:
    """Of one command at a time: `take` gives its lines and begins the next."""

    def __init__(self) -> None:
        self.at = ""
        """Stands before each line: when it happened, where a command takes time."""
        self._said: list[tuple[str, list[str]]] = []
        self._muted = False

    def say(self, head: str, item: str) -> None:
        if self._muted:
            return
        head = self.at + head
        if self._said and self._said[-1][0] == head:
            self._said[-1][1].append(item)
        else:
            self._said.append((head, [item]))

    @contextmanager
    def muted(self) -> Iterator[None]:
        """What is said in here is left out."""
        before, self._muted = self._muted, True
        try:
            yield
        finally:
            self._muted = before

    def take(self) -> list[str]:
        """The lines so far; `ok` if there is none."""
        lines = [line for head, items in self._said for line in _wrapped(f"{head} {'; '.join(items)}".strip())]
        self._said = []
        return lines or [NOTHING]


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
