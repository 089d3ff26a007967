"""When a device or a peer is left alone. Owns the states of one's breaker; never knows what was tried.

closed --failures in a row, or one that hangs--> open --its time is over--> probing --ok--> closed
                                                   ^------------- failed ----+
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["closed", "open", "probing"]

_TOLERATED = 3
"""Failures in a row that one may have before it is left alone."""

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


@dataclass(slots=True)
class Breaker:
    """Times in seconds of the caller's clock."""

    state: State = "closed"
    until: float = 0.0
    _failures: int = 0
    _pause: float = _FIRST_PAUSE

    @property
    def closed(self) -> bool:
        """Whether it may be used."""
        return self.state == "closed"

    def succeeded(self) -> None:
        """An operation, or the probe, ended well. What succeeds late while open proves nothing."""
        if self.state == "open":
            return
        self.state, self._failures, self._pause = "closed", 0, _FIRST_PAUSE

    def failed(self, now: float, hung: bool = False) -> bool:
        """An operation failed or does not end; True if it is left alone from now on."""
        if self.state == "open":
            return False
        self._failures += 1
        if self.state == "closed" and self._failures < _TOLERATED and not hung:
            return False
        self.state, self.until = "open", now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return True

    def due(self, now: float) -> bool:
        """Whether it is time to probe."""
        return self.state == "open" and now >= self.until

    def probe(self) -> None:
        """A probe is under way."""
        self.state = "probing"
