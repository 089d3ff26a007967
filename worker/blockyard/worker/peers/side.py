"""The peer channel beside the event loop, where the core lives. Owns who runs where; decides nothing.

What threads find out is handed to the loop. Without an address to listen on there is nothing here at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterator
from functools import partial

from blockyard.common.config import WorkerConfig
from blockyard.common.logs import fields
from blockyard.common.metrics.counters import Counters
from blockyard.common.tls import client_context, server_context
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.dialing import Dialer
from blockyard.worker.peers.exchange import SlotMemory
from blockyard.worker.peers.fetching import FetchThreads
from blockyard.worker.peers.server import PeerServer, Reports, bind
from blockyard.worker.peers.standing import Self

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
_LAST_SECONDS = 5.0


class PeerSide:
    """Inside `threads()`, `execute` carries out what the core says; `run()` keeps the time."""

    def __init__(
        self,
        config: WorkerConfig,
        me: Self,
        memory: SlotMemory,
        counters: Counters,
        feed: Callable[[wire.PeerEvent], None],
    ) -> None:
        self._config = config
        self._me = me
        self._memory = memory
        self._counters = counters
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._fetching: FetchThreads | None = None
        self._server: PeerServer | None = None
        self.address = ""
        """Where other workers find this one; empty where peers are off."""

    def execute(self, one: wire.PeerInstruction) -> None:
        """Begin it; its events come later, never before this returns to the core."""
        if self._fetching is None or self._server is None:
            return
        match one:
            case wire.FetchChunks():
                self._fetching.submit(one)
            case wire.CancelFetches(ops):
                self._fetching.cancel(ops)
            case wire.ServeChunks():
                self._server.serve(one)

    async def run(self) -> None:
        """Give up what waits for too long, until cancelled."""
        while True:
            if self._fetching is not None:
                self._fetching.tick()
            await asyncio.sleep(_TICK_SECONDS)

    def show_gauges(self) -> None:
        """How many connections there are."""
        if self._fetching is not None and self._server is not None:
            show = partial(self._counters.set, "blockyard_worker_peer_connections")
            show(self._fetching.connections, side="reading")
            show(self._server.sessions, side="serving")

    @contextlib.contextmanager
    def threads(self) -> Iterator[None]:
        """Listens meanwhile, if told to. No thread touches the pool after this ends."""
        if not self._config.serves_peers:
            yield
            return
        sock = bind(self._config.peer_listen)
        address = self._config.peer_advertised(sock.getsockname()[1])
        if address.is_loopback and not all(endpoint.is_loopback for endpoint in self._config.etcd):
            _log.warning("workers on other machines cannot reach this one", extra=fields(peer_address=address))
        self.address = str(address)
        count = self._count
        frame_refused = partial(count, "blockyard_worker_frames_refused_total")
        serving, reading = _contexts(self._config)
        self._server = PeerServer(
            sock,
            self._me,
            serving,
            self._memory,
            Reports(
                post=self._post,
                refused=partial(count, "blockyard_worker_peer_links_refused_total"),
                frame_refused=frame_refused,
                sent=lambda size: self._on_loop(self._counters.add, "blockyard_worker_peer_sent_bytes_total", size),
                cut_slow=lambda: self._on_loop(self._counters.add, "blockyard_worker_peer_sends_cut_total"),
            ),
        )
        self._fetching = FetchThreads(
            Dialer(self._me, reading),
            self._memory,
            self._post,
            partial(count, "blockyard_worker_peer_links_failed_total"),
            frame_refused,
        )
        self._server.start()
        try:
            yield
        finally:
            self._server.stop(_LAST_SECONDS)
            self._fetching.stop(_LAST_SECONDS)

    def _post(self, event: wire.PeerEvent) -> None:
        self._on_loop(self._feed, event)

    def _count(self, name: str, reason: str) -> None:
        self._on_loop(partial(self._counters.add, name, reason=reason))

    def _on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        # The loop may have ended by the time a thread has.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)


def _contexts(config: WorkerConfig) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """For those who connect, and for connecting; None without TLS."""
    if not (config.tls_ca and config.tls_cert and config.tls_key):
        return None, None
    files = config.tls_ca, config.tls_cert, config.tls_key
    return server_context(*files), client_context(*files)
