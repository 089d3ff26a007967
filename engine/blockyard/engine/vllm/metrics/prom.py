"""The series in vLLM's `/metrics`, in the process that answers scrapes. Owns them; must never hold a number of its own.

Counters and histograms are there from the start, as 0. Gauges come with the engine's first step: before, nobody knows.
"""

import logging
from contextlib import suppress
from itertools import product
from typing import Any

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from blockyard.common.metrics.spec import Kind, Metric, Part
from blockyard.common.metrics.table import TABLE, of_part
from blockyard.engine.vllm.metrics.stats import Values

logger = logging.getLogger(__name__)

_registered: list[Any] = []
"""vLLM takes its own series out of the registry when an engine is made anew in a process; ours it does not know."""


class BlockyardPromMetrics(KVConnectorPromMetrics):
    """vLLM's labels first, which name the model and the engine, then ours."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        forget_former()
        self._families = {metric.name: self._family(metric) for metric in of_part(Part.ENGINE)}
        self._series: dict[tuple[int, str, str], Any] = {}
        for engine, metric in product(per_engine_labelvalues, of_part(Part.ENGINE)):
            if metric.kind is not Kind.GAUGE:
                for label in _labels(metric):
                    self._one(engine, metric.name, label)

    def observe(self, transfer_stats_data: Values, engine_idx: int = 0) -> None:
        """Show one report; names and label values that the table does not have are left out."""
        try:
            self._take(transfer_stats_data, engine_idx)
        except Exception:
            logger.exception("Blockyard: a report is missing in its numbers in vLLM's /metrics")

    def _take(self, data: Values, engine: int) -> None:
        for name, values in data.items():
            metric = TABLE.get(name)
            if metric is None or name not in self._families:
                continue
            for label in _labels(metric):
                if label in values:
                    self._show(engine, metric, label, values[label])
                elif metric.kind is Kind.GAUGE:
                    self._show(engine, metric, label, 0)

    def _show(self, engine: int, metric: Metric, label: str, value: Any) -> None:
        series = self._one(engine, metric.name, label)
        if metric.kind is Kind.GAUGE:
            series.set(value)
        elif metric.kind is Kind.COUNTER:
            series.inc(value)
        else:
            for observation in value:
                series.observe(observation)

    def _family(self, metric: Metric) -> Any:
        names = [*self._labelnames, *metric.label_names]
        if metric.kind is Kind.COUNTER:
            family = self._counter_cls(name=metric.name, documentation=metric.meaning, labelnames=names)
        elif metric.kind is Kind.GAUGE:
            family = self._gauge_cls(
                name=metric.name, documentation=metric.meaning, labelnames=names, multiprocess_mode="mostrecent"
            )
        else:
            family = self._histogram_cls(
                name=metric.name, documentation=metric.meaning, labelnames=names, buckets=list(metric.buckets)
            )
        _registered.append(family)
        return family

    def _one(self, engine: int, name: str, label: str) -> Any:
        key = (engine, name, label)
        if key not in self._series:
            ours = [label] if label else []
            self._series[key] = self._families[name].labels(*self.per_engine_labelvalues[engine], *ours)
        return self._series[key]


def _labels(metric: Metric) -> tuple[str, ...]:
    """All values of the only label; one empty one without a label."""
    return metric.labels[0].values if metric.labels else ("",)


def forget_former() -> None:
    """Take all series out of the registry."""
    while _registered:
        with suppress(KeyError):
            REGISTRY.unregister(_registered.pop())
