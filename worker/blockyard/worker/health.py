"""What is degraded, why and since when. Owns that list; must never know how any part works."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """One part that is not as it should be. The worker serves its engines all the same."""

    part: str
    reason: str
    since: float
    """Seconds since the Unix epoch."""


class Health:
    """Parts report here; the endpoints show it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._troubles: dict[str, Trouble] = {}
        self.serving = False
        """Engines can attach."""

    def well(self, part: str) -> None:
        """This part works."""
        self._troubles.pop(part, None)

    def ill(self, part: str, reason: str) -> None:
        """This part does not work; `since` stays that of the first report."""
        before = self._troubles.get(part)
        self._troubles[part] = Trouble(part, reason, before.since if before else self._clock())

    def troubles(self) -> list[Trouble]:
        """Oldest first."""
        return sorted(self._troubles.values(), key=lambda trouble: trouble.since)
