"""The worker's parts and who talks to whom.

Owns their making, their tasks and their end; each task lives in one group, so that none outlives the service.
Must never hold a decision: chunks are the core's, waits and retries each part's own.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry

from blockyard.common.config import WorkerConfig
from blockyard.common.logs import fields
from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.exposition import Metrics
from blockyard.common.metrics.spec import Part
from blockyard.worker.attach import AttachServer
from blockyard.worker.checksums import Area, ChecksumThreads
from blockyard.worker.cluster_side import ClusterSide
from blockyard.worker.core import events
from blockyard.worker.core.policies.registry import POLICIES
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.worker import WorkerCore
from blockyard.worker.disk.claims import Claims
from blockyard.worker.disk.side import DiskSide
from blockyard.worker.disk_watch import DiskWatch
from blockyard.worker.faces import Faces
from blockyard.worker.health import Health
from blockyard.worker.leader_link import Identity
from blockyard.worker.listener import Listener
from blockyard.worker.peers.side import PeerSide
from blockyard.worker.peers.standing import Self
from blockyard.worker.pool import HostPool
from blockyard.worker.prefault import Prefault
from blockyard.worker.shell import Shell

_log = logging.getLogger(__name__)

_CHECKSUM_THREADS = 2
_STUCK_SECONDS = 5.0
_LAST_WORDS_SECONDS = 2.0


class Service:
    """One worker over a listener and a pool that its caller owns. Make it on the event loop's thread."""

    def __init__(
        self, config: WorkerConfig, settings: CoreSettings, listener: Listener, pool: HostPool, claims: Claims
    ) -> None:
        self._config = config
        self._settings = settings
        self._pool = pool
        self._claims = claims
        self._started = time.monotonic()
        self._counters = Counters(Part.WORKER, strict=False)
        self._core = WorkerCore(settings, self._counters, POLICIES[config.policy])
        self._health = Health()
        self._disk_watch = DiskWatch(self._core.disk.directories.all, self._core.disk.operations, self._health)
        self._shell = Shell(self._core, pool, self._counters, config.delta_interval)
        self._server = AttachServer(listener, pool.descriptors, self._shell)
        self._cluster = ClusterSide(
            config,
            Identity(config.cluster, settings.node, settings.boot_id, settings.version),
            self._health,
            self._shell.feed,
            lambda: self._core.next_seq,
            self._shell.frame_refused,
            lambda: self._shell.progresses(_STUCK_SECONDS),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; an ExceptionGroup says that a part has a bug."""
        registry = CollectorRegistry()
        identity = {"cluster": self._config.cluster, "worker": self._config.node_id}
        metrics = Metrics(registry, Part.WORKER, identity, counters=self._counters, engines=self._shell.numbers.reports)
        metrics.before_scrape(self._refresh_gauges)
        core = self._core
        async with Faces(self._config.metrics_listen, registry, self._health, core.story, core.validate) as faces:
            disk = DiskSide(self._config, self._claims, self._pool, self._disk_watch, self._shell.feed)
            others = PeerSide(self._config, self._me(), self._pool, self._counters, self._shell.feed)
            metrics.before_scrape(others.show_gauges)
            with self._threads() as checksums, disk.threads(), others.threads():
                self._shell.connect(self._server, checksums, self._cluster, disk, others)
                await self._serve(stop, str(faces.address), disk, others)

    def _me(self) -> Self:
        """As other workers know this one."""
        settings, cluster = self._settings, self._cluster
        return Self(self._config.cluster, settings.node, settings.boot_id, settings.version, lambda: cluster.standing)

    async def _serve(self, stop: asyncio.Event, metrics: str, disk: DiskSide, others: PeerSide) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._server.run(), name="attach server"),
                group.create_task(self._shell.tick(), name="ticks"),
                group.create_task(self._shell.watch(), name="crash watch"),
                group.create_task(self._cluster.run(metrics, others.address), name="cluster"),
                group.create_task(others.run(), name="other workers"),
                group.create_task(disk.run(), name="disk"),
                group.create_task(self._disk_watch.run(), name="disk watch"),
            ]
            self._health.serving = True
            _log.info(
                "serving",
                extra=fields(
                    socket=self._config.socket,
                    metrics=f"http://{metrics}/metrics",
                    peers=others.address or "off",
                    pool_bytes=self._pool.memory.size,
                    boot=self._settings.boot_id.hex(),
                ),
            )
            await stop.wait()
            self._health.serving = False
            _log.info("stopping", extra=fields(socket=self._config.socket))
            self._shell.feed(events.DrainAsked("the worker stops"))
            await self._server.flush(_LAST_WORDS_SECONDS)
            for task in tasks:
                task.cancel()

    @contextlib.contextmanager
    def _threads(self) -> Iterator[ChecksumThreads]:
        """Threads that touch the pool; none does after this ends."""
        loop = asyncio.get_running_loop()

        def ended(area: Area, result: tuple[int, ...] | str) -> None:
            loop.call_soon_threadsafe(self._shell.checksum_ended, area, result)

        def short(reason: str) -> None:
            loop.call_soon_threadsafe(self._pool_short, reason)

        checksums = ChecksumThreads(self._pool, _CHECKSUM_THREADS, ended)
        prefault = Prefault(self._pool.memory, short)
        if self._config.prefault:
            prefault.start()
        try:
            yield checksums
        finally:
            prefault.stop()
            checksums.stop()

    def _pool_short(self, reason: str) -> None:
        """A pool that the machine cannot back is told before an engine meets it."""
        self._health.ill("pool", reason)
        _log.error("the pool's memory is not all there", extra=fields(reason=reason))

    def _refresh_gauges(self) -> None:
        counters = self._counters
        counters.set("blockyard_worker_uptime_seconds", time.monotonic() - self._started)
        counters.choose("blockyard_worker_leader_link", self._cluster.link_state)
        counters.choose("blockyard_worker_etcd_registration", self._cluster.registration_state)
        self._core.show_gauges()
        counters.set("blockyard_worker_disk_devices_left_alone", self._disk_watch.unused)
