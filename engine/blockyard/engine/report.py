"""What an engine counts, until its worker is told. Owns the batches; the table of metrics owns the names.

Counting works while detached too; what stood in a message that was lost with its session is lost.
"""

from collections.abc import Iterator

from blockyard.common.messages.attach import EngineCounters
from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.reports import drain
from blockyard.common.metrics.spec import Kind, Part
from blockyard.common.metrics.table import TABLE

_PER_MESSAGE = 256


class Report:
    """Counters and histograms by metric name and the value of their only label."""

    def __init__(self) -> None:
        self._counters = Counters(Part.ENGINE, strict=False)
        self._changed = False

    def add(self, name: str, label: str, value: float) -> None:
        """Add to a counter, or put one observation into a histogram; unknown names are dropped."""
        metric = TABLE.get(name)
        labels = {metric.label_names[0]: label} if metric and metric.labels else {}
        if metric and metric.kind is Kind.HISTOGRAM:
            self._counters.observe(name, value, **labels)
        else:
            self._counters.add(name, value, **labels)
        self._changed = True

    def take(self) -> Iterator[EngineCounters]:
        """What has been counted since the last call, in messages."""
        if not self._changed:
            return
        self._changed = False
        counts = drain(self._counters)
        for start in range(0, len(counts), _PER_MESSAGE):
            yield EngineCounters(counts[start : start + _PER_MESSAGE])
