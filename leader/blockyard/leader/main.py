"""The leader's process: parts made in order, run together, ended cleanly.

Owns start and end. On SIGTERM or SIGINT the election key is given up first, so that a standby takes over at
once.
"""

import asyncio
import gc
import logging
import signal
import socket
import ssl
from importlib.metadata import PackageNotFoundError, version

from blockyard.common.config import Address, LeaderConfig
from blockyard.common.errors import ConfigError
from blockyard.common.etcd import EtcdClient, EtcdTls
from blockyard.common.logs import fields, set_up
from blockyard.common.tls import server_context
from blockyard.leader import gauges, http
from blockyard.leader.election import Election, LeaderRecord
from blockyard.leader.entrance import Entrance
from blockyard.leader.roster import Roster
from blockyard.leader.service import Service

_CRASHED = 70
_END_SECONDS = 5.0

log = logging.getLogger(__name__)


def run(config: LeaderConfig) -> int:
    """Lead or stand by until SIGTERM or SIGINT, then 0. Raises ConfigError when it cannot start."""
    set_up(config.log_level, "leader")
    with (
        _listener("listen", config.listen) as for_links,
        _listener("http_listen", config.http_listen) as for_http,
        asyncio.Runner(loop_factory=_loop) as runner,
    ):
        return runner.run(_serve(config, for_links, for_http))


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(config: LeaderConfig, for_links: socket.socket, for_http: socket.socket) -> int:
    """Run the parts; a bug in one ends the process, since an index that may be wrong must answer nobody."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    etcd_tls = EtcdTls(config.etcd_ca, config.etcd_cert, config.etcd_key) if config.etcd_ca else None
    try:
        async with EtcdClient([str(endpoint) for endpoint in config.etcd], tls=etcd_tls) as client:
            await _lead_until(stop, config, client, for_links, for_http)
    except ExceptionGroup as group:
        log.critical("the leader has a bug and stops", exc_info=group)
        return _CRASHED
    return 0


async def _lead_until(
    stop: asyncio.Event,
    config: LeaderConfig,
    client: EtcdClient,
    for_links: socket.socket,
    for_http: socket.socket,
) -> None:
    service = Service(config, _version())
    record = _record(config, for_links, for_http, service.version)
    election, roster = _join(service, client, record)
    # From now on the index's dicts are no concern of the garbage collector, which would stop the loop to read them.
    gc.freeze()
    entrance = Entrance(service.links, service.refusals, for_links, _tls(config), config.max_workers)
    faces = await http.Faces(service, gauges.expose(service)).serve(for_http)
    log.info("leader serves", extra=fields(link=record.link, http=record.http))
    try:
        async with asyncio.TaskGroup() as tasks:
            campaign = tasks.create_task(election.run(), name="election")
            others = [
                tasks.create_task(part, name=name)
                for name, part in (
                    ("roster", roster.run()),
                    ("tick", service.tick()),
                    ("links", service.links.watch()),
                    ("entrance", entrance.run()),
                )
            ]
            await stop.wait()
            log.info("leader ends")
            campaign.cancel()
            await asyncio.wait([campaign], timeout=_END_SECONDS)
            for task in others:
                task.cancel()
    finally:
        service.links.stop()
        await faces.stop()


def _tls(config: LeaderConfig) -> ssl.SSLContext | None:
    """Mutual TLS from the configured files; None where the configuration allows plain TCP."""
    if config.tls_ca is not None and config.tls_cert is not None and config.tls_key is not None:
        return server_context(config.tls_ca, config.tls_cert, config.tls_key)
    if not config.insecure:
        raise ConfigError("tls_cert is not set; right: tls_ca, tls_cert and tls_key, or insecure = true")
    return None


def _join(service: Service, client: EtcdClient, record: LeaderRecord) -> tuple[Election, Roster]:
    config = service.config
    prefix = f"/blockyard/{config.cluster}"
    election = Election(
        client,
        prefix,
        record,
        int(config.lease_ttl),
        alive=service.alive,
        on_lead=service.lead,
        on_lost=service.lose,
    )
    roster = Roster(client, prefix, feed=service.feed, awaits_list=service.awaits_list)
    service.join(election, roster)
    return election, roster


def _listener(name: str, address: Address) -> socket.socket:
    """A listening socket, made before anything else so that a taken port is one clear line."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(f"{name} = {address}: cannot listen there: {error.strerror or error}") from error


def _record(config: LeaderConfig, for_links: socket.socket, for_http: socket.socket, version: str) -> LeaderRecord:
    """What others are told; a wildcard HTTP address is reached at the host that links use."""
    link = config.advertised(for_links.getsockname()[1])
    return LeaderRecord(config.node_id, str(link), str(config.http_advertised(for_http.getsockname()[1])), version)


def _version() -> str:
    try:
        return version("blockyard")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
