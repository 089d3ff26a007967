"""The table of all metrics, joined and looked up by name. Must never know how numbers are kept or shown."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from blockyard.common.metrics import engine, leader, worker
from blockyard.common.metrics.spec import Equality, Metric, Part

METRICS: tuple[Metric, ...] = worker.METRICS + leader.METRICS + engine.METRICS
EQUALITIES: tuple[Equality, ...] = worker.EQUALITIES + leader.EQUALITIES + engine.EQUALITIES
TABLE: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})


def of_part(part: Part) -> tuple[Metric, ...]:
    """The metrics that one part moves, in the table's order."""
    return tuple(metric for metric in METRICS if metric.part is part)
