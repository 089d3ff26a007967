"""The roster: workers' registrations in etcd, followed by a watch and handed on as events.

Owns the meaning of the keys under `…/workers/`. Must never know what the machine makes of them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from blockyard.common.etcd import (
    EtcdClient,
    EtcdError,
    KeyDeleted,
    KeyPut,
    KeyValue,
    Resync,
    Watch,
    WatchEvent,
)
from blockyard.common.logs import fields
from blockyard.leader.core import events

_LOOK_S = 0.1
_RETRY_S = 1.0

log = logging.getLogger(__name__)


class _Registration(msgspec.Struct):
    boot_id: str = ""
    version: str = ""
    metrics: str = ""
    pool_bytes: int = 0
    peer: str = ""


class Roster:
    """Follows the registrations while `run` runs; `awaits_list` says that the machine wants all of them anew."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        *,
        feed: Callable[[events.Event], None],
        awaits_list: Callable[[], bool],
    ) -> None:
        self._client = client
        self._prefix = f"{prefix}/workers/"
        self._feed = feed
        self._awaits_list = awaits_list
        self._watch: Watch | None = None

    @property
    def broken_since(self) -> float | None:
        """Since when etcd does not tell us of changes (monotonic); None while it does."""
        return self._watch.broken_since if self._watch else None

    async def run(self) -> None:
        """Follow until cancelled, through outages."""
        while True:
            try:
                async with self._client.watch(self._prefix, prefix=True) as watch:
                    self._watch = watch
                    await self._follow(watch)
            except EtcdError as error:
                log.error("registrations cannot be followed", extra=fields(prefix=self._prefix, error=error))
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, watch: Watch) -> None:
        """Hand on events. Returns when a list is wanted that this watch gave before: it does not outlive its data."""
        listed = False
        while not (listed and self._awaits_list()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    event = await anext(watch)
                listed = listed or isinstance(event, Resync)
                self._hand_on(event)

    def _hand_on(self, event: WatchEvent) -> None:
        match event:
            case Resync(listing=listing):
                self._feed(events.WorkersListed(tuple(self._registration(kv) for kv in listing.kvs)))
            case KeyPut(kv=kv):
                self._feed(self._registration(kv))
            case KeyDeleted(key=key, revision=revision):
                # Whatever was registered under the key before this revision is gone.
                self._feed(events.WorkerUnregistered(self._node(key), revision))

    def _registration(self, kv: KeyValue) -> events.WorkerRegistered:
        try:
            said = msgspec.json.decode(kv.value, type=_Registration)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("registration cannot be read", extra=fields(key=kv.key, error=error))
            said = _Registration()
        info = events.WorkerInfo(said.boot_id, said.version, said.metrics, said.pool_bytes, said.peer)
        return events.WorkerRegistered(self._node(kv.key), kv.create_revision, info)

    def _node(self, key: str) -> str:
        return key.removeprefix(self._prefix)
