"""Virtual time: a queue of what happens next. Owns the order of events; must never know what they are.

Events of one moment happen in the order in which they were queued, so a run is the same each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Act = Callable[[], None]


class Clock:
    """`now` is the monotonic time of the whole simulated world, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Act]] = []
        self._number = 0

    def after(self, seconds: float, act: Act) -> None:
        """Let `act` happen so many seconds from now."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + max(0.0, seconds), self._number, act))

    def run_until(self, end: float) -> None:
        """Let everything happen that is due by `end`."""
        while self._queue and self._queue[0][0] <= end:
            at, _, act = heapq.heappop(self._queue)
            self.now = at
            self.events += 1
            act()
        self.now = end
