"""All of the worker that faces etcd and the leader, in one task.

Owns the etcd client and the parts that use it. Nothing here may stop the worker: engines are served without a
cluster, so even a bug on this side is told, not raised.
"""

import asyncio
import logging
from collections.abc import Callable

from blockyard.common.config import WorkerConfig
from blockyard.common.etcd.client import EtcdClient
from blockyard.common.etcd.endpoints import EtcdTls
from blockyard.common.logs import fields
from blockyard.common.tls import client_context
from blockyard.worker.core import events, instructions
from blockyard.worker.health import Health
from blockyard.worker.leader_finder import LeaderFinder
from blockyard.worker.leader_link import Identity, LeaderLink
from blockyard.worker.peers.standing import Standing
from blockyard.worker.registration import Registration

_log = logging.getLogger(__name__)

_RESTART_SECONDS = 5.0


class ClusterSide:
    """Run `run()` in a task group. Without etcd in the configuration there is no cluster to take part in."""

    def __init__(
        self,
        config: WorkerConfig,
        identity: Identity,
        health: Health,
        feed: Callable[[events.Event], None],
        next_seq: Callable[[], int],
        frame_refused: Callable[[str], None],
        alive: Callable[[], bool],
    ) -> None:
        self._config = config
        self._identity = identity
        self._health = health
        self._alive = alive
        self._registration: Registration | None = None
        tls = None
        if config.tls_ca and config.tls_cert and config.tls_key:
            tls = client_context(config.tls_ca, config.tls_cert, config.tls_key)
        self._link = LeaderLink(identity, tls, feed, next_seq, frame_refused, health)
        self._etcd_tls = None
        if config.etcd_ca:
            self._etcd_tls = EtcdTls(config.etcd_ca, config.etcd_cert, config.etcd_key)
            self._etcd_tls.credentials()  # files that cannot be used are a ConfigError now, not later

    @property
    def link_state(self) -> str:
        return self._link.state if self._config.etcd else "disabled"

    @property
    def registration_state(self) -> str:
        if not self._config.etcd:
            return "disabled"
        return self._registration.state if self._registration else "pending"

    @property
    def standing(self) -> Standing:
        """What this worker is in the cluster; may be asked from any thread."""
        return self._link.standing

    def publish(self, messages: list[instructions.ToLeader]) -> None:
        """To the leader, or nowhere."""
        self._link.publish(messages)

    async def run(self, metrics: str, peer: str) -> None:
        """Be part of the cluster until cancelled; `metrics` and `peer` are addresses that this worker tells others."""
        if not self._config.etcd:
            return
        self._health.ill("leader", "not found yet")
        self._health.ill("registration", "not registered yet")
        while True:
            try:
                await self._take_part(metrics, peer)
            except Exception as error:
                _log.exception("the cluster side has a bug; it starts anew", extra=fields(error=error))
                self._health.ill("cluster", f"restarted after {error!r}")
                await asyncio.sleep(_RESTART_SECONDS)

    async def _take_part(self, metrics: str, peer: str) -> None:
        prefix = f"/blockyard/{self._config.cluster}"
        endpoints = [str(endpoint) for endpoint in self._config.etcd]
        async with EtcdClient(endpoints, tls=self._etcd_tls) as client:
            registration = self._register(client, prefix, metrics, peer)
            finder = LeaderFinder(client, prefix, self._health, self._link.follow)
            self._link.doubt = finder.doubt
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(registration.run(), name="registration")
                tasks.create_task(finder.run(), name="leader finder")
                tasks.create_task(self._link.run(), name="leader link")

    def _register(self, client: EtcdClient, prefix: str, metrics: str, peer: str) -> Registration:
        self._registration = Registration(
            client,
            prefix,
            self._config,
            self._identity,
            metrics,
            peer,
            self._health,
            self._alive,
            self._link.incarnate,
        )
        return self._registration
