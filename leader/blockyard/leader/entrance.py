"""Where workers' connections come in: accepted, made TLS where that is configured, and then links.

Owns the listening socket, each handshake with its deadline, and how many connections there may be. Must never know
what is said on a link. A handshake that fails is counted and told, which asyncio's own server would not do.
"""

import asyncio
import logging
import socket
import ssl

from blockyard.common.logs import fields
from blockyard.leader.refusals import Refusals
from blockyard.leader.worker_links import HELLO_TIMEOUT, WorkerLinks

STRANGERS = 64
"""Connections beyond the workers allowed that may be saying hello; a further one is closed unheard."""

_PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Entrance:
    """Run `run()` in a task group; the listening socket stays its caller's."""

    def __init__(
        self,
        links: WorkerLinks,
        refusals: Refusals,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        max_workers: int,
    ) -> None:
        self._links = links
        self._refusals = refusals
        self._listener = listener
        self._tls = tls
        self._max_connections = max_workers + STRANGERS
        self._handshakes = 0

    async def run(self) -> None:
        """Take connections in until cancelled."""
        self._listener.setblocking(False)
        async with asyncio.TaskGroup() as handshakes:
            while True:
                accepted = await self._accept()
                if accepted is None:
                    continue
                connection, peer = accepted
                if self._handshakes + self._links.open >= self._max_connections:
                    connection.close()
                    self._refusals.note("crowded", peer, f"{self._max_connections} connections are open")
                else:
                    self._handshakes += 1
                    handshakes.create_task(self._admit(connection, peer), name="handshake")

    async def _accept(self) -> tuple[socket.socket, str] | None:
        """The next connection and who is at its other end; None after a failure."""
        # A backlog that never runs dry must not keep the loop to itself.
        await asyncio.sleep(0)
        try:
            connection, address = await asyncio.get_running_loop().sock_accept(self._listener)
        except OSError as error:
            log.warning("connections cannot be accepted", extra=fields(error=error))
            await asyncio.sleep(_PAUSE_S)
            return None
        return connection, f"{address[0]}:{address[1]}"

    async def _admit(self, connection: socket.socket, peer: str) -> None:
        """Make a link of a connection, or close it."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._links.make,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HELLO_TIMEOUT if self._tls else None,
            )
        except OSError as error:
            connection.close()
            self._refusals.note("tls", peer, str(error) or type(error).__name__)
        finally:
            self._handshakes -= 1
