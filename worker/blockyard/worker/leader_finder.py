"""Who leads the cluster, as etcd says. Owns following the election key and reading the cluster uid; must never
know what they mean, nor speak to a leader. While etcd is away the last answer stands: it may be stale, which the
epoch fence takes care of.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from blockyard.common.etcd.client import EtcdClient
from blockyard.common.etcd.errors import EtcdError
from blockyard.common.etcd.watch import Watch, WatchEvent
from blockyard.common.logs import fields
from blockyard.worker.election_key import ElectionKey, LeaderAddress
from blockyard.worker.health import Health

_log = logging.getLogger(__name__)

_PART = "etcd"
_LOOK = 1.0
_RETRY = 1.0
_PATIENCE = 2.0


class LeaderFinder:
    """Run `run()` in a task group; `found` is called, on the loop, with each new leader."""

    def __init__(self, client: EtcdClient, prefix: str, health: Health, found: Callable[[LeaderAddress], None]) -> None:
        self._client = client
        self._prefix = prefix
        self._health = health
        self._found = found
        self._key = ElectionKey()
        self._doubted = asyncio.Event()

    def doubt(self) -> None:
        """What was found last may not be right: read etcd anew.

        A watch does not see that etcd was wiped if its revisions have caught up meanwhile.
        """
        self._doubted.set()

    async def run(self) -> None:
        """Follow the election key until cancelled, through any failure of etcd."""
        while True:
            try:
                async with self._client.watch(f"{self._prefix}/leader") as watch:
                    await self._follow(watch)
            except EtcdError as error:
                self._health.ill(_PART, str(error))
                _log.warning("etcd cannot be used", extra=fields(error=error))
                await asyncio.sleep(_RETRY)

    async def _follow(self, watch: Watch) -> None:
        self._doubted.clear()
        while not self._doubted.is_set():
            try:
                async with asyncio.timeout(_LOOK):
                    event = await anext(watch)
            except TimeoutError:
                self._note(watch)
                continue
            self._health.well(_PART)
            await self._take(event)

    def _note(self, watch: Watch) -> None:
        since = watch.broken_since
        if since is None:
            self._health.well(_PART)
        elif time.monotonic() - since > _PATIENCE:
            self._health.ill(_PART, "no endpoint answers")

    async def _take(self, event: WatchEvent) -> None:
        entry = self._key.heard(event)
        if entry is None:
            return
        uid = await self._client.keys.get(f"{self._prefix}/uid")
        try:
            self._found(self._key.leader(entry, uid))
        except ValueError as error:
            _log.error("leader's entry in etcd cannot be read", extra=fields(key=entry.key, error=error))
