"""Engines' numbers as a worker keeps them. Owns the latest report of each session; must never know the wire.

An engine is several processes (a scheduler and its ranks). Each reports the totals since its own start, so a
lost report costs nothing: the next one says it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blockyard.common.metrics.counters import Counters, Key
from blockyard.common.metrics.spec import Kind, Part
from blockyard.common.metrics.table import TABLE

Rows = list[tuple[Key, tuple[float, ...]]]


class EngineReports:
    """The last report of each session, summed up per engine when shown; at most `limit` engines."""

    def __init__(self, *, strict: bool = True, limit: int = 256) -> None:
        self._strict = strict
        self._limit = limit
        self._sessions: dict[str, dict[str, Counters]] = {}
        self.refused = 0

    def take(self, engine: str, session: str, rows: Rows) -> None:
        """Put a session's report in place of its last one; `session` names the process, e.g. `rank-0`."""
        if engine not in self._sessions and len(self._sessions) >= self._limit:
            self.refused += len(rows)
            return
        report = Counters(Part.ENGINE, strict=self._strict)
        report.replace(rows)
        self.refused += report.refused
        self._sessions.setdefault(engine, {})[session] = report

    def forget(self, engine: str) -> None:
        """Drop an engine that is gone, so that its series end."""
        self._sessions.pop(engine, None)

    def engines(self) -> Iterator[tuple[str, Rows]]:
        """Each engine with its sessions' numbers put together."""
        for engine, sessions in list(self._sessions.items()):
            yield engine, _merged(list(sessions.values()))


def _merged(sessions: Iterable[Counters]) -> Rows:
    merged: dict[Key, tuple[float, ...]] = {}
    for session in sessions:
        for key, numbers in session.rows():
            before = merged.get(key, (0.0,) * len(numbers))
            if TABLE[key[0]].kind is Kind.GAUGE:
                merged[key] = max(before, numbers)
            else:
                merged[key] = tuple(a + b for a, b in zip(before, numbers, strict=True))
    return list(merged.items())
