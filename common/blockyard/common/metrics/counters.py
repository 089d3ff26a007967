"""Plain numbers under the table's names. Owns the values; must never know Prometheus, clocks or threads.

A pure core holds one `Counters` and adds to it; a shell shows it at scrape time (see exposition). A key is
flat: the metric's name, then its label values in the table's order. It is checked in full when first seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from blockyard.common.metrics.spec import Kind, Metric, Part
from blockyard.common.metrics.table import TABLE

Key = tuple[str, ...]
Cells = tuple[float, ...]
Adder = Callable[[float], None]


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

    def adder(self, name: str, **labels: str) -> Adder:
        """`add` to one series with its name and labels checked once, for what is counted with every message.

        The series is shown from its first addition on. What the table does not declare is refused now, and then
        each time.
        """
        key = self._key(name, labels, Kind.COUNTER)
        if key is None:
            return lambda value: self._refuse(f"{name}: not a series of this part")
        values = self._values

        def add(value: float) -> None:
            if value < 0:
                self._refuse(f"{name}: a counter never falls; got {value}")
            else:
                values[key] = values.get(key, 0) + value

        return add

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        key = self._key(name, labels, Kind.GAUGE)
        if key is not None:
            self._values[key] = value

    def choose(self, name: str, chosen: str) -> None:
        """Set a gauge with one label to 1 for the value `chosen` and to 0 for its other values."""
        metric = TABLE.get(name)
        if metric is None or len(metric.labels) != 1:
            self._refuse(f"{name}: not a metric with exactly one label")
            return
        label = metric.labels[0]
        self.set(name, 1, **{label.name: chosen})
        for other in label.values:
            if other != chosen:
                self.set(name, 0, **{label.name: other})

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one observation into a histogram."""
        key = self._key(name, labels, Kind.HISTOGRAM)
        if key is not None:
            buckets = TABLE[name].buckets
            self.pour(name, bisect_left(buckets, value), 1, **labels)
            self._histograms[key][-1] += value

    def pour(self, name: str, cell: int, value: float, **labels: str) -> None:
        """Add to one cell of a histogram: a bucket by its index, or -1 for the sum."""
        key = self._key(name, labels, Kind.HISTOGRAM)
        if key is not None:
            cells = self._histograms.setdefault(key, [0.0] * (len(TABLE[name].buckets) + 2))
            cells[cell] += value

    def get(self, name: str, **labels: str) -> float:
        """One series' value; for a histogram the number of observations; 0 if never touched."""
        metric = TABLE[name]
        key = (name, *[labels[label] for label in metric.label_names])
        if metric.kind is Kind.HISTOGRAM:
            return sum(self._histograms.get(key, [0.0])[:-1])
        return self._values.get(key, 0)

    def total(self, name: str) -> float:
        """The sum over all labels of a counter or gauge."""
        return sum(value for key, value in self._values.items() if key[0] == name)

    def rows(self) -> Iterator[tuple[Key, Cells]]:
        """Every series: one number for a counter or gauge, bucket counts and then the sum for a histogram.

        A copy is read, so a scrape from another thread never meets a changing dict.
        """
        for key, value in self._values.copy().items():
            yield key, (value,)
        for key, cells in self._histograms.copy().items():
            yield key, tuple(cells)

    def clear(self) -> None:
        """Forget all numbers, but not how many updates were refused."""
        self._values.clear()
        self._histograms.clear()

    def _key(self, name: str, labels: dict[str, str], kind: Kind) -> Key | None:
        metric = TABLE.get(name)
        if metric is None:
            self._refuse(f"{name!r} is not in the table of metrics")
            return None
        key = (name, *[labels.get(label, "") for label in metric.label_names])
        known = self._histograms if kind is Kind.HISTOGRAM else self._values
        if key in known and metric.kind is kind and labels.keys() == metric.label_set:
            return key
        fault = self._fault(metric, labels, kind)
        if fault:
            self._refuse(fault)
            return None
        return key

    def _fault(self, metric: Metric, labels: dict[str, str], kind: Kind) -> str | None:
        """Why a series may not be; None if it may."""
        if metric.part is not self.part:
            return f"{metric.name} belongs to the {metric.part}, not the {self.part}"
        if metric.kind is not kind:
            return f"{metric.name} is a {metric.kind}, not a {kind}"
        if labels.keys() != metric.label_set:
            return f"{metric.name} has labels {list(metric.label_names)}, not {list(labels)}"
        for label in metric.labels:
            if label.values and labels[label.name] not in label.values:
                allowed = ", ".join(label.values)
                return f"{metric.name}: {label.name}={labels[label.name]!r} is not one of {allowed}"
        return None

    def _refuse(self, fault: str) -> None:
        if self.strict:
            raise UnknownMetric(fault)
        self.refused += 1
