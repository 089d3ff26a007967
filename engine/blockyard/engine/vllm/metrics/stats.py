"""What was counted since vLLM last asked, in the form in which vLLM passes it from process to process.

Owns how two such reports are joined. Must never know how they are shown.
"""

from typing import Any, TypeAlias

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from blockyard.common.metrics.spec import Kind
from blockyard.common.metrics.table import TABLE

MOST_OBSERVED = 4096
"""Observations of one series that are kept for vLLM's log; a step brings at most one for each question asked."""

Values: TypeAlias = dict[str, dict[str, Any]]
"""By metric and the value of its only label: a counter's increment, a gauge's value, a histogram's observations.

A gauge is there with all its values: a label that is left out is 0.
"""


class BlockyardStats(KVConnectorStats):
    """`data` are `Values`."""

    def reset(self) -> None:
        """Begin anew."""
        self.data: Values = {}

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.data

    def aggregate(self, other: "BlockyardStats") -> "BlockyardStats":
        """These with another process's, or with later ones of the same."""
        for name, values in other.data.items():
            _join(self.data, name, values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Numbers for vLLM's log line; of observations, how many there were."""
        return {
            name.removeprefix("blockyard_engine_") + (f"[{label}]" if label else ""): _number(value)
            for name, values in self.data.items()
            for label, value in values.items()
        }


def _join(data: Values, name: str, values: dict[str, Any]) -> None:
    metric = TABLE.get(name)
    if metric is None:
        return
    if metric.kind is Kind.GAUGE:
        data[name] = dict(values)
        return
    known = data.setdefault(name, {})
    for label, value in values.items():
        if metric.kind is Kind.HISTOGRAM:
            known[label] = (known.get(label, []) + value)[-MOST_OBSERVED:]
        else:
            known[label] = known.get(label, 0) + value


def _number(value: Any) -> int | float:
    return len(value) if isinstance(value, list) else round(value, 6)
