"""The leader's process: parts made in order, run together, ended cleanly.

Owns start and end. On SIGTERM or SIGINT the election key is given up first, so that a standby takes over at
once.
"""

import asyncio
import logging
import signal
import socket
import ssl
from importlib.metadata import PackageNotFoundError, version

from blockyard.common.config import Address, LeaderConfig
from blockyard.common.errors import ConfigError
from blockyard.common.etcd import EtcdClient, EtcdTls
from blockyard.leader import gauges, http
from blockyard.leader.election import Election, LeaderRecord
from blockyard.leader.roster import Roster
from blockyard.leader.service import Service
from blockyard.leader.tls import server_context

EXIT_OK, EXIT_CONFIG = 0, 2
END_TIMEOUT_S = 5.0

log = logging.getLogger("blockyard.leader")


def run(config: LeaderConfig) -> int:
    """Run a leader until SIGTERM or SIGINT; returns the exit code."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        with asyncio.Runner(loop_factory=_loop) as runner:
            return runner.run(_run(config))
    except ConfigError as error:
        log.error("%s", error)
        return EXIT_CONFIG


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _run(config: LeaderConfig) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tls = server_context(config)
    etcd_tls = EtcdTls(config.etcd_ca, config.etcd_cert, config.etcd_key) if config.etcd_ca else None
    with (
        _listener("listen", config.listen) as for_links,
        _listener("http_listen", config.http_listen) as for_http,
    ):
        async with EtcdClient([str(endpoint) for endpoint in config.etcd], tls=etcd_tls) as client:
            await _lead_until(stop, config, client, for_links, for_http, tls)
    return EXIT_OK


async def _lead_until(
    stop: asyncio.Event,
    config: LeaderConfig,
    client: EtcdClient,
    for_links: socket.socket,
    for_http: socket.socket,
    tls: ssl.SSLContext | None,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        service = Service(config, _version(), tasks)
        record = _record(config, for_links, for_http, service.version)
        election, roster = _join(service, client, record)
        server = await asyncio.start_server(service.links.accept, sock=for_links, ssl=tls)
        faces = await http.serve(http.Faces(service, gauges.expose(service)).application(), for_http)
        log.info("links at %s, HTTP at %s", record.link, record.http)
        campaign = tasks.create_task(election.run(), name="election")
        others = [
            tasks.create_task(roster.run(), name="roster"),
            tasks.create_task(service.tick(), name="tick"),
        ]
        await stop.wait()
        log.info("ends")
        campaign.cancel()
        await asyncio.wait([campaign], timeout=END_TIMEOUT_S)
        server.close()
        service.links.stop()
        for task in others:
            task.cancel()
        await faces.cleanup()


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
    roster = Roster(client, prefix, feed=service.feed, cluster_uid=service.cluster_uid)
    service.join(election, roster)
    return election, roster


def _listener(name: str, address: Address) -> socket.socket:
    """A listening socket, made before anything else so that a taken port is one clear line."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(f"{name} = {address}: cannot listen there: {error.strerror or error}") from error


def _record(
    config: LeaderConfig, for_links: socket.socket, for_http: socket.socket, version: str
) -> LeaderRecord:
    """What others are told; a wildcard HTTP address is reached at the host that links use."""
    link = config.advertised(for_links.getsockname()[1])
    http_host = link.host if config.http_listen.is_wildcard else config.http_listen.host
    return LeaderRecord(
        config.node_id, str(link), str(Address(http_host, for_http.getsockname()[1])), version
    )


def _version() -> str:
    try:
        return version("blockyard")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
