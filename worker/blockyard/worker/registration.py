"""This worker's entry in etcd. Owns what the entry says and what its states mean for the worker; how a key
is kept alive is etcd's business. A new registration is a new incarnation.
"""

import json
import logging
from collections.abc import Callable

from blockyard.common.config import WorkerConfig
from blockyard.common.etcd.client import EtcdClient
from blockyard.common.etcd.key_state import Held, KeyState, NotHeld, Waiting
from blockyard.common.etcd.leased_key import LeasedKey
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.logs import fields
from blockyard.worker.health import Health
from blockyard.worker.leader_link import Identity

_log = logging.getLogger(__name__)

_PART = "registration"
_MARGIN_SHARE = 0.2


class Registration:
    """Run `run()` in a task group; `incarnated` is called, on the loop, with each new incarnation."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        config: WorkerConfig,
        identity: Identity,
        metrics: str,
        peer: str,
        health: Health,
        alive: Callable[[], bool],
        incarnated: Callable[[int], None],
    ) -> None:
        self._health = health
        self._incarnated = incarnated
        self._node = identity.node
        self.incarnation = 0
        self.state = "pending"
        entry = {
            "node": identity.node,
            "boot_id": identity.boot_id.hex(),
            "version": identity.version,
            "metrics": metrics,
            "peer": peer,
            "pool_bytes": config.host_pool,
        }
        ttl = round(config.lease_ttl)
        self._key = LeasedKey(
            client,
            f"{prefix}/workers/{identity.node}",
            json.dumps(entry).encode(),
            terms=LeaseTerms(ttl, _MARGIN_SHARE * ttl),
            alive=alive,
            on_change=self._changed,
            take_over=True,
        )

    async def run(self) -> None:
        """Stay registered until cancelled, then take the entry back."""
        await self._key.run()

    def _changed(self, state: KeyState) -> None:
        match state:
            case Held(create_revision):
                self.state = "registered"
                self._health.well(_PART)
                if create_revision != self.incarnation:
                    self.incarnation = create_revision
                    _log.info("registered", extra=fields(node=self._node, incarnation=create_revision))
                    self._incarnated(create_revision)
            case Waiting():
                self._lose("another worker is registered under this node_id; right: a node_id of its own")
            case NotHeld(reason):
                self._lose(reason)

    def _lose(self, reason: str) -> None:
        self.state = "lost" if self.incarnation else "pending"
        self._health.ill(_PART, reason)
        _log.warning("not registered", extra=fields(node=self._node, reason=reason))
