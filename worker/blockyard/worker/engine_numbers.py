"""Which engines' numbers are shown. Owns when an engine's series end; must never know what a number means.

An engine that has gone is shown for a while, so that a scrape gets its last numbers.
"""

from blockyard.common.messages import attach
from blockyard.common.metrics.reports import EngineReports

_GONE_SHOWN = 16


class EngineNumbers:
    """Counts the links of each engine; `reports` is what a scrape shows."""

    def __init__(self) -> None:
        self.reports = EngineReports()
        self._links: dict[str, int] = {}
        self._gone: dict[str, None] = {}

    def came(self, engine: str) -> None:
        """One more process of this engine has a link."""
        self._links[engine] = self._links.get(engine, 0) + 1
        self._gone.pop(engine, None)

    def went(self, engine: str) -> None:
        """One process less."""
        self._links[engine] -= 1
        if self._links[engine]:
            return
        del self._links[engine]
        self._gone[engine] = None
        if len(self._gone) > _GONE_SHOWN:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self.reports.forget(oldest)

    def add(self, engine: str, message: attach.EngineCounters) -> None:
        """Take in what a process of an engine has counted."""
        self.reports.take(engine, message.counts)
