"""The part of a connector that vLLM asks for numbers. Owns that no trouble with them ever reaches the engine."""

import logging
from abc import abstractmethod
from typing import Any

from blockyard.engine.vllm.metrics.prom import BlockyardPromMetrics, forget_former
from blockyard.engine.vllm.metrics.stats import BlockyardStats
from blockyard.engine.vllm.metrics.tally import Tally

logger = logging.getLogger(__name__)


class Shown:
    """To be named before vLLM's class, whose own numbers are not shown."""

    _numbers_failed = False

    @abstractmethod
    def _tally(self) -> Tally | None:
        """What this process has counted."""

    def get_kv_connector_stats(self) -> BlockyardStats | None:
        """Called once a step, in the scheduler's process and in each rank's."""
        try:
            # Taken, or they would pile up.
            super().get_kv_connector_stats()  # type: ignore[misc]
            tally = self._tally()
            return tally.take() if tally is not None else None
        except Exception:
            if not self._numbers_failed:
                logger.exception("Blockyard: numbers of this process are missing in vLLM's /metrics")
            self._numbers_failed = True
            return None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> BlockyardStats:
        """A report as it was sent; called where vLLM logs."""
        return BlockyardStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> BlockyardPromMetrics | None:
        """The series; None, and a line in the log, if they cannot be had."""
        try:
            return BlockyardPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        except Exception:
            forget_former()
            logger.exception("Blockyard: none of its numbers in vLLM's /metrics")
            return None
