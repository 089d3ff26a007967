"""Owns reading the worker's counters as a monitoring system does. It decides nothing from them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

UNANSWERED = "blockyard_engine_unanswered_tokens_total"
SCHEDULERS = "blockyard_worker_sessions"
BACKLOG = "blockyard_worker_disk_spill_backlog"
MISSES = "blockyard_worker_miss_chunks_total"
COPIES = "blockyard_worker_disk_copies"
STARTED = "blockyard_worker_disk_writes_started_total"
COMPLETED = "blockyard_worker_disk_writes_completed_total"
ANSWER_DEADLINE_S = 5.0
WAIT_DEADLINE_S = 30.0
WAIT_PAUSE_S = 0.1


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

    async def all_written(self) -> float:
        """Wait until every chunk that it holds is on disk; how many are there."""
        await self._until("all chunks are on disk", lambda seen: not seen[BACKLOG] and seen[STARTED] == seen[COMPLETED])
        return (await self._seen())[COPIES]

    async def copies_found(self, count: float) -> None:
        """Wait until so many chunks on disk are known."""
        await self._until(f"{count:g} chunks are found on disk", lambda seen: seen[COPIES] >= count)

    async def read_too_late(self) -> bool:
        """Whether, since it started, a chunk on disk was not read within the time that an engine waits."""
        return any(
            sample.value > 0
            for family in text_string_to_metric_families(await self._metrics())
            for sample in family.samples
            if sample.name == MISSES and sample.labels["reason"] == "deadline"
        )

    async def engines_attached(self, count: int) -> None:
        """Wait until so many engines have found the worker."""
        await self._until(f"{count} engines are attached", lambda seen: seen[SCHEDULERS] == count)

    async def _until(self, what: str, holds: Callable[[defaultdict[str, float]], bool]) -> None:
        give_up_at = time.monotonic() + WAIT_DEADLINE_S
        while not holds(await self._seen()):
            if time.monotonic() > give_up_at:
                raise WorkerSilent(f"{self.url}/metrics: not within {WAIT_DEADLINE_S:g} s: {what}")
            await asyncio.sleep(WAIT_PAUSE_S)

    async def _seen(self) -> defaultdict[str, float]:
        """Sums by name; of sessions those of live schedulers alone."""
        seen: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(await self._metrics()):
            for sample in family.samples:
                if sample.name != SCHEDULERS or (sample.labels["role"], sample.labels["state"]) == (
                    "scheduler",
                    "live",
                ):
                    seen[sample.name] += sample.value
        return seen

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
