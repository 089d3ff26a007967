"""Numbers shown to Prometheus. Owns the only use of prometheus-client; must never hold a number of its own.

A registered `Metrics` is a collector: nothing is counted in prometheus-client's objects, the plain numbers
are read when a scrape comes. Each series whose labels are all bounded is shown from the start, as 0: a rate
over a series that appears with its first event would miss that event.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, product

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from blockyard.common.metrics.counters import Cells, Counters, Key
from blockyard.common.metrics.reports import EngineReports
from blockyard.common.metrics.spec import IDENTITY, Kind, Metric, Part
from blockyard.common.metrics.table import of_part

Rows = Mapping[Key, Cells]
Source = tuple[tuple[str, ...], Rows]


class Metrics(Collector):
    """One part's metrics in one registry: `inc`, `set`, `choose` and `observe` count, a scrape reads.

    `counters` is the object that a core counts into; the shell counts into the same one. `engines` adds the
    metrics of the engines that report to this worker.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        part: Part | str,
        identity: Mapping[str, str],
        *,
        counters: Counters | None = None,
        engines: EngineReports | None = None,
    ) -> None:
        self.part = Part(part)
        if set(identity) != set(IDENTITY[self.part]):
            raise ValueError(f"identity of a {self.part} is {IDENTITY[self.part]}, not {tuple(identity)}")
        self.counters = Counters(self.part) if counters is None else counters
        self._identity = tuple(identity[name] for name in IDENTITY[self.part])
        self._engines = engines
        self._refreshers: list[Callable[[], None]] = []
        self.inc = self.counters.add
        self.set = self.counters.set
        self.choose = self.counters.choose
        self.observe = self.counters.observe
        if self.part is not Part.ENGINE:
            self.set(f"blockyard_{self.part}_build_info", 1, version=_version(), python=platform.python_version())
        registry.register(self)

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """Have `refresh` set gauges that are cheaper read than kept (ages, depths, states) at each scrape."""
        self._refreshers.append(refresh)

    def describe(self) -> Iterable[Family]:
        """Names only, by which the registry refuses a second collector of the same part."""
        return [_family(metric) for metric in of_part(self.part) if metric.at_worker]

    def collect(self) -> Iterable[Family]:
        for refresh in self._refreshers:
            refresh()
        rows = dict(self.counters.rows())
        if self.part is not Part.ENGINE:
            refused = self.counters.refused + (self._engines.refused if self._engines else 0)
            rows[(f"blockyard_{self.part}_metric_updates_refused_total",)] = (refused,)
        yield from _families(self.part, [(self._identity, rows)])
        if self._engines is not None:
            yield from _families(
                Part.ENGINE,
                [((*self._identity, name), dict(counted.rows())) for name, counted in self._engines.engines()],
            )


def render(registry: CollectorRegistry) -> tuple[bytes, str]:
    """Body and content type of a `/metrics` answer."""
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _families(part: Part, sources: Sequence[Source]) -> Iterator[Family]:
    for metric in of_part(part):
        if not metric.at_worker:
            continue
        family = _family(metric)
        for identity, rows in sources:
            for key in _series(metric, rows):
                _add(family, metric, identity + key[1:], rows.get(key))
        yield family


def _family(metric: Metric) -> Family:
    names = IDENTITY[metric.part] + metric.label_names
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.meaning, labels=names)
    if metric.kind is Kind.GAUGE:
        return GaugeMetricFamily(metric.name, metric.meaning, labels=names)
    return HistogramMetricFamily(metric.name, metric.meaning, labels=names)


def _series(metric: Metric, rows: Rows) -> Iterable[Key]:
    """All series of a metric: every combination of bounded labels, or those seen if a label is free text."""
    if all(label.values for label in metric.labels):
        return ((metric.name, *values) for values in product(*(label.values for label in metric.labels)))
    return (key for key in rows if key[0] == metric.name)


def _add(family: Family, metric: Metric, labels: tuple[str, ...], cells: Cells | None) -> None:
    if isinstance(family, HistogramMetricFamily):
        cells = cells or (0.0,) * (len(metric.buckets) + 2)
        bounds = (*(f"{bound:g}" for bound in metric.buckets), "+Inf")
        family.add_metric(labels, list(zip(bounds, accumulate(cells[:-1]), strict=True)), cells[-1])
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        family.add_metric(labels, cells[0] if cells else 0)


def _version() -> str:
    try:
        return version("blockyard")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
