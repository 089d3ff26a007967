"""Plain numbers under the table's names. Owns the values; must never know Prometheus, clocks or threads.

A pure core holds one `Counters` and adds to it; a shell shows it at scrape time (see exposition). A key is flat:
the metric's name and its label values in the table's order. It is checked once, when first seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from blockyard.common.metrics.spec import Kind, Metric, Part
from blockyard.common.metrics.table import TABLE

Key = tuple[str, ...]


class UnknownMetric(ValueError):
    """The table has no such metric, label or label value for this part."""


class Counters:
    """The numbers of one part of one process.

    `strict` (tests, development) raises on anything the table does not declare; otherwise the update is
    dropped and counted in `refused`, since a misspelt metric must not stop a worker.
    """

    __slots__ = ("_histograms", "_values", "part", "refused", "strict")

    def __init__(self, part: Part | str, *, strict: bool = True) -> None:
        self.part = Part(part)
        self.strict = strict
        self.refused = 0
        self._values: dict[Key, float] = {}
        # Per key: how many observations fell in each bucket (the last is +Inf), then their sum.
        self._histograms: dict[Key, list[float]] = {}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        key = self._key(name, labels, Kind.COUNTER)
        if key is None:
            return
        if value < 0:
            self._refuse(f"{name}: a counter never falls; got {value}")
            return
        self._values[key] = self._values.get(key, 0) + value

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        key = self._key(name, labels, Kind.GAUGE)
        if key is not None:
            self._values[key] = value

    def choose(self, name: str, chosen: str | None) -> None:
        """Set a gauge with one label to 1 for `chosen` and to 0 for each other value; None clears all."""
        metric = TABLE.get(name)
        if metric is None or len(metric.labels) != 1:
            self._refuse(f"{name}: not a metric with exactly one label")
            return
        label = metric.labels[0]
        if chosen is not None and chosen not in label.values:
            self._refuse(f"{name}: {label.name}={chosen!r} is not one of {', '.join(label.values)}")
            return
        for value in label.values:
            self.set(name, float(value == chosen), **{label.name: value})

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one observation into a histogram."""
        key = self._key(name, labels, Kind.HISTOGRAM)
        if key is None:
            return
        buckets = TABLE[name].buckets
        cells = self._histograms.setdefault(key, [0.0] * (len(buckets) + 2))
        cells[bisect_left(buckets, value)] += 1
        cells[-1] += value

    def get(self, name: str, **labels: str) -> float:
        """One series' value; for a histogram the number of observations; 0 if never touched."""
        metric = TABLE[name]
        key = (name, *(labels[label] for label in metric.label_names))
        if metric.kind is Kind.HISTOGRAM:
            return sum(self._histograms.get(key, (0.0,))[:-1])
        return self._values.get(key, 0)

    def total(self, name: str) -> float:
        """The sum over all labels of a counter or gauge."""
        return sum(value for key, value in self._values.items() if key[0] == name)

    def rows(self) -> Iterator[tuple[Key, tuple[float, ...]]]:
        """Every series: one number for a counter or gauge, bucket counts and sum for a histogram.

        A copy is read, so a scrape from another thread never meets a changing dict.
        """
        for key, value in self._values.copy().items():
            yield key, (value,)
        for key, cells in self._histograms.copy().items():
            yield key, tuple(cells)

    def replace(self, rows: list[tuple[Key, tuple[float, ...]]]) -> None:
        """Take in whole what `rows()` of another process gave; what the table does not know is refused."""
        for key, numbers in rows:
            metric = TABLE.get(key[0]) if key else None
            wanted = len(metric.buckets) + 2 if metric and metric.kind is Kind.HISTOGRAM else 1
            if metric is None or len(key) != len(metric.labels) + 1 or len(numbers) != wanted:
                self._refuse(f"{key!r}: no such series with {len(numbers)} numbers")
                continue
            labels = dict(zip(metric.label_names, key[1:], strict=True))
            if self._key(metric.name, labels, metric.kind) is None:
                continue
            if metric.kind is Kind.HISTOGRAM:
                self._histograms[key] = list(numbers)
            else:
                self._values[key] = numbers[0]

    def _key(self, name: str, labels: dict[str, str], kind: Kind) -> Key | None:
        metric = TABLE.get(name)
        if metric is None:
            return self._refuse(f"{name!r} is not in the table of metrics")
        try:
            key = (name, *[labels[label.name] for label in metric.labels])
        except KeyError as missing:
            return self._refuse(f"{name}: label {missing} is missing")
        if len(labels) == len(metric.labels) and (key in self._values or key in self._histograms):
            return key if metric.kind is kind else self._refuse(f"{name} is a {metric.kind}, not a {kind}")
        fault = self._fault(metric, labels, kind)
        return self._refuse(fault) if fault else key

    def _fault(self, metric: Metric, labels: dict[str, str], kind: Kind) -> str | None:
        """Why a series seen for the first time may not be; None if it may."""
        if metric.part is not self.part:
            return f"{metric.name} belongs to the {metric.part}, not the {self.part}"
        if metric.kind is not kind:
            return f"{metric.name} is a {metric.kind}, not a {kind}"
        if len(labels) != len(metric.labels):
            return f"{metric.name} has labels {list(metric.label_names)}, not {sorted(labels)}"
        for label in metric.labels:
            if label.values and labels[label.name] not in label.values:
                allowed = ", ".join(label.values)
                return f"{metric.name}: {label.name}={labels[label.name]!r} is not one of {allowed}"
        return None

    def _refuse(self, fault: str) -> None:
        if self.strict:
            raise UnknownMetric(fault)
        self.refused += 1
