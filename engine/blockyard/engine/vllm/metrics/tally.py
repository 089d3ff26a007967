"""Numbers of one process, from step to step. Owns the values until vLLM takes them; must never know where they go."""

from typing import Any

from blockyard.common.metrics.spec import Kind
from blockyard.common.metrics.table import TABLE
from blockyard.engine.jobs import CopyKind, CopyResult
from blockyard.engine.report import Report
from blockyard.engine.vllm.metrics.stats import BlockyardStats, Values

_PREFIX = "blockyard_engine_"
_LEG: dict[CopyKind, str] = {"load": "host_to_gpu", "store": "gpu_to_host"}


class Tally:
    """Used by one thread, the engine's."""

    def __init__(self) -> None:
        self._counted: Values = {}
        self._gauges: Values = {}
        self._told: Values = {}

    def add(self, name: str, label: str, value: float) -> None:
        """Add to a counter, or put one observation into a histogram; unknown names are dropped."""
        metric = TABLE.get(name)
        if metric is None or (metric.kind is Kind.COUNTER and not value):
            return
        values: dict[str, Any] = self._counted.setdefault(name, {})
        if metric.kind is Kind.HISTOGRAM:
            values.setdefault(label, []).append(value)
        else:
            values[label] = values.get(label, 0) + value

    def copied(self, result: CopyResult) -> None:
        """A rank's transfer has ended."""
        self.add(f"{_PREFIX}copied_bytes_total", _LEG[result.kind], result.copied)
        self.add(f"{_PREFIX}copy_seconds_total", _LEG[result.kind], result.seconds)
        for state in result.states:
            self.add(f"{_PREFIX}{result.kind}s_total", state.label, 1)

    def stands(self, detached: str, loads: int = 0, stores: int = 0) -> None:
        """How the scheduler stands: why it is detached, empty if it is not, and what the ranks have under way."""
        self._gauges = {
            f"{_PREFIX}attached": {"": 0 if detached else 1},
            f"{_PREFIX}detached": {detached: 1} if detached else {},
            f"{_PREFIX}pending_copies": {_LEG["load"]: loads, _LEG["store"]: stores},
        }

    def take(self) -> BlockyardStats | None:
        """What has been counted since the last call, with all gauges; None if nothing has changed."""
        if not self._counted and self._gauges == self._told:
            return None
        counted, self._counted = self._counted, {}
        self._told = self._gauges
        return BlockyardStats(data=counted | self._gauges)


class ToldTwice(Report):
    """A scheduler's report to its worker that vLLM is told as well."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def add(self, name: str, label: str, value: float) -> None:
        """Count for both."""
        super().add(name, label, value)
        self._tally.add(name, label, value)
