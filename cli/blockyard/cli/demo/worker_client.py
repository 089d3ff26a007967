"""Owns reading the worker's counters as a monitoring system does. It decides nothing from them."""

from __future__ import annotations

from types import TracebackType

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

UNANSWERED = "blockyard_engine_unanswered_tokens_total"
ANSWER_DEADLINE_S = 5.0


class WorkerSilent(RuntimeError):
    """The worker's metrics could not be read in time; the message says why."""


class WorkerClient:
    """Use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self.url = url
        timeout = aiohttp.ClientTimeout(total=ANSWER_DEADLINE_S)
        self._session = aiohttp.ClientSession(base_url=url, timeout=timeout)

    async def given_up(self, engine: str) -> float:
        """Tokens that an engine computed because the worker's answer did not come in time."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(await self._metrics())
            for sample in family.samples
            if sample.name == UNANSWERED and sample.labels["engine"] == engine and sample.labels["reason"] == "deadline"
        )

    async def __aenter__(self) -> WorkerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def _metrics(self) -> str:
        try:
            async with self._session.get("/metrics") as response:
                response.raise_for_status()
                return await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerSilent(f"{self.url}/metrics: {error!r}") from error
