"""When the next attempt to attach may be made. Owns the delays; time is passed in, nothing waits here."""

FIRST_DELAY = 0.2
LONGEST_DELAY = 5.0


class Breaker:
    """Opens at the first failure; each failure in a row doubles the delay until the next attempt.

    Attaching alone does not prove a worker well: only an answered request starts the delays over.
    """

    def __init__(self, first: float = FIRST_DELAY, longest: float = LONGEST_DELAY) -> None:
        self._first = first
        self._longest = longest
        self._delay = 0.0
        self._retry_at = 0.0

    @property
    def retry_at(self) -> float:
        """Time from which an attempt is allowed."""
        return self._retry_at

    def failed(self, now: float) -> None:
        """An attempt, a session or a request came to nothing."""
        self._delay = min(self._longest, self._delay * 2) if self._delay else self._first
        self._retry_at = now + self._delay

    def answered(self) -> None:
        """The worker has answered a request."""
        self._delay = 0.0
        self._retry_at = 0.0

    def admits(self, now: float) -> bool:
        """Whether an attempt may be made."""
        return now >= self._retry_at
