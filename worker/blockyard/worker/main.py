"""The worker's process: takes its resources, starts its parts, ends them in order.

Owns the order of start and end. Whatever is wrong at start is one ConfigError before an engine has seen
anything.
"""

import asyncio
import logging
import os
import platform
import signal
from importlib.metadata import PackageNotFoundError, version

import uvloop

from blockyard.common.config import WorkerConfig, require_memory, system_memory_limits
from blockyard.common.logs import fields, set_up
from blockyard.common.slot_table import STORES_IN_ORDER
from blockyard.worker.core.peers.settings import PeerSettings
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.disk.claims import Claims
from blockyard.worker.disk.side import claimed, disk_settings
from blockyard.worker.listener import Listener
from blockyard.worker.pool import HostPool
from blockyard.worker.service import Service

_log = logging.getLogger(__name__)

_CRASHED = 70


def run(config: WorkerConfig) -> int:
    """Serve until SIGTERM or SIGINT, then 0. Raises ConfigError when it cannot start."""
    set_up(config.log_level, "worker")
    warn_of_store_order(platform.machine())
    settings = _settings(config)
    listener = Listener(config.socket, config.socket_mode)
    try:
        # Looked at when a predecessor has ended, which gives its pool back.
        require_memory(config.host_pool, system_memory_limits())
        with (
            claimed(config) as claims,
            _pool(settings) as pool,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_serve(config, settings, listener, pool, claims))
    finally:
        listener.close()


async def _serve(
    config: WorkerConfig, settings: CoreSettings, listener: Listener, pool: HostPool, claims: Claims
) -> int:
    """Run the service; a bug in it ends the process, since books that may be wrong must serve nobody."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await Service(config, settings, listener, pool, claims).run(stop)
    except ExceptionGroup as group:
        _log.critical("the worker has a bug and stops", exc_info=group)
        return _CRASHED
    return 0


def warn_of_store_order(machine: str) -> None:
    """Say once that the slot table's order of stores is not promised on this kind of machine."""
    if machine not in STORES_IN_ORDER:
        _log.warning(
            "engines may see a slot's words out of order on this machine; only x86-64 is safe",
            extra=fields(machine=machine),
        )


def _pool(settings: CoreSettings) -> HostPool:
    return HostPool(settings.boot_id, settings.pool_bytes, settings.slab_bytes, settings.table_slots)


def _settings(config: WorkerConfig) -> CoreSettings:
    return CoreSettings(
        node=config.node_id,
        boot_id=os.urandom(16),
        version=_version(),
        pool_bytes=config.host_pool,
        slab_bytes=config.slab_size,
        min_slot=config.min_slot,
        pin_ttl=config.pin_ttl,
        fill_deadline=config.fill_deadline,
        max_pins_per_engine=config.max_pins_per_engine,
        max_fills_per_engine=config.max_fills_per_engine,
        delta_interval=config.delta_interval,
        disk=disk_settings(config),
        peers=PeerSettings(enabled=config.serves_peers),
    )


def _version() -> str:
    try:
        return version("blockyard")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
