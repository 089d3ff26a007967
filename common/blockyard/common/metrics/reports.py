"""Engines' numbers on their way to the worker and there. Owns the increments' form; must never know the link.

An increment is (metric, label value, amount): what `EngineCounters` of the attach channel carries. The label
value is empty for a metric without labels; for a histogram it is the bucket's upper bound, `+Inf` or `sum`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from blockyard.common.metrics.counters import Counters, Key
from blockyard.common.metrics.spec import Kind, Metric, Part
from blockyard.common.metrics.table import TABLE

Increment = tuple[str, str, float]


def drain(counters: Counters) -> list[Increment]:
    """Take everything counted in an engine since the last call; what is 0 is left out."""
    increments = [
        (key[0], label, amount)
        for key, cells in counters.rows()
        for label, amount in zip(_cell_labels(TABLE[key[0]], key), cells, strict=True)
        if amount
    ]
    counters.clear()
    return increments


class EngineReports:
    """What each attached engine has counted since this worker first heard of it; at most `limit` engines.

    Whatever an engine of another version sends that the table does not know is dropped and counted.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._engines: dict[str, Counters] = {}
        self._refused = 0

    @property
    def refused(self) -> int:
        """Increments that were dropped."""
        return self._refused

    def take(self, engine: str, increments: Iterable[Increment]) -> None:
        """Add one message's increments to its engine's numbers."""
        counters = self._engines.get(engine)
        if counters is None and len(self._engines) < self._limit:
            counters = self._engines[engine] = Counters(Part.ENGINE, strict=False)
        for name, label, amount in increments:
            if counters is None or not _take_one(counters, name, label, amount):
                self._refused += 1

    def forget(self, engine: str) -> None:
        """Drop an engine that is gone, so that its series end."""
        self._engines.pop(engine, None)

    def engines(self) -> Iterator[tuple[str, Counters]]:
        """Each engine with its numbers."""
        yield from list(self._engines.items())


def _take_one(counters: Counters, name: str, label: str, amount: float) -> bool:
    """Apply one increment from outside; False if it makes no sense."""
    metric = TABLE.get(name)
    if metric is None or not (math.isfinite(amount) and amount >= 0):
        return False
    refused = counters.refused
    if metric.kind is Kind.HISTOGRAM:
        names = _cell_labels(metric, (name,))
        if label not in names:
            return False
        counters.pour(name, names.index(label), amount)
    else:
        counters.add(name, amount, **({metric.label_names[0]: label} if metric.labels else {}))
    return counters.refused == refused


def _cell_labels(metric: Metric, key: Key) -> tuple[str, ...]:
    """The label value under which each cell of a series travels."""
    if metric.kind is Kind.HISTOGRAM:
        return (*(f"{bound:g}" for bound in metric.buckets), "+Inf", "sum")
    return (key[1] if len(key) > 1 else "",)
