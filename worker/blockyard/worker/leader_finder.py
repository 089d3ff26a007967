"""Who leads the cluster, as etcd says. Owns following the election key and reading the cluster uid; must
never speak to a leader. While etcd is away the last answer stands: it may be stale, which the epoch fence
takes care of.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.common.config import Address, parse_address
from blockyard.common.etcd.client import EtcdClient
from blockyard.common.etcd.errors import EtcdError, EtcdRefused
from blockyard.common.etcd.history import HistoryCounter
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import KeyPut, Resync, Watch, WatchEvent
from blockyard.common.fencing import Epoch
from blockyard.common.logs import fields
from blockyard.worker.health import Health

_log = logging.getLogger(__name__)

_PART = "etcd"
_LOOK = 1.0
_RETRY = 1.0
_PATIENCE = 2.0
_UID_BYTES = 16


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """A leader's claim: its term, its name (which its certificate must carry) and where it listens.

    `history` counts how often etcd was seen to go back, as it does when it is restored from a backup.
    """

    epoch: Epoch
    node: str
    address: Address
    history: int = 0


class LeaderFinder:
    """Run `run()` in a task group; `found` is called, on the loop, with each new leader."""

    def __init__(self, client: EtcdClient, prefix: str, health: Health, found: Callable[[LeaderAddress], None]) -> None:
        self._client = client
        self._prefix = prefix
        self._health = health
        self._found = found
        self._seen = HistoryCounter()
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
        match event:
            case Resync():
                self._seen.resync(event)
                if event.listing.first is None:
                    return
                current = event.listing.first
            case KeyPut(kv=kv):
                self._seen.put(kv)
                current = kv
            case _:
                # No leader for now; the link, if it stands, does no harm.
                return
        uid = await self._client.keys.get(f"{self._prefix}/uid")
        if uid is None:
            raise EtcdRefused(f"etcd key {self._prefix}/uid is missing, though {current.key} is there")
        try:
            self._found(_leader(current, uid, self._seen.history))
        except (ValueError, KeyError, TypeError) as error:
            _log.error("leader's entry in etcd cannot be read", extra=fields(key=current.key, error=error))


def _leader(entry: KeyValue, uid: KeyValue, history: int) -> LeaderAddress:
    """Raises ValueError, KeyError or TypeError on an entry that no leader of this version would write."""
    content = json.loads(entry.value)
    cluster_uid = bytes.fromhex(uid.value.decode("ascii"))
    if len(cluster_uid) != _UID_BYTES:
        raise ValueError(f"the cluster uid is {cluster_uid.hex()}, not {_UID_BYTES} bytes in hex")
    node, link = content["node"], content["link"]
    if not isinstance(node, str):
        raise TypeError(f"node is {node!r}, not a name")
    return LeaderAddress(Epoch(cluster_uid, entry.create_revision), node, parse_address(link), history)
