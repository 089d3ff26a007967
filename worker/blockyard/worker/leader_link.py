"""The link to the leader: found, opened, kept alive, opened again.

Owns the connection, its deadlines and the epoch fence. Must never know what a Delta says, and nothing that
serves an engine may wait for it: what is published while no link stands is dropped, as the core knows what
was acknowledged.
"""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.common.codec import FrameRefused
from blockyard.common.errors import BlockyardError
from blockyard.common.fencing import Epoch, EpochFence
from blockyard.common.link import LinkClosed
from blockyard.common.logs import fields
from blockyard.common.messages import cluster
from blockyard.common.tls import peer_name
from blockyard.worker.core import events, instructions
from blockyard.worker.election_key import LeaderAddress
from blockyard.worker.health import Health
from blockyard.worker.leader_connection import LeaderConnection
from blockyard.worker.peers.standing import Standing

_log = logging.getLogger(__name__)

_PART = "leader"
_OPEN_SECONDS = 5.0
_PING_SECONDS = 1.0
_SILENCE_SECONDS = 5.0
_FIRST_BACKOFF = 0.1
_LAST_BACKOFF = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker says of itself to a leader."""

    cluster: str
    node: str
    boot_id: bytes
    version: str


class _Refused(BlockyardError):
    """We or the leader will not have this link; trying again at once would not help."""


class _NotLeading(_Refused):
    """etcd names a process that does not lead yet, or not any more; that passes by itself."""


def _words(epoch: Epoch) -> str:
    return f"epoch {epoch.number} of cluster {epoch.cluster_uid.hex()}"


class LeaderLink:
    """Run `run()` in a task group. `follow` says where to connect, `incarnate` under which registration."""

    def __init__(
        self,
        identity: Identity,
        tls: ssl.SSLContext | None,
        feed: Callable[[events.Event], None],
        next_seq: Callable[[], int],
        frame_refused: Callable[[str], None],
        health: Health,
    ) -> None:
        self.doubt: Callable[[], None] = lambda: None
        """Called when the leader that was named gave us no link: etcd may name another one by now."""
        self._identity = identity
        self._tls = tls
        self._feed = feed
        self._next_seq = next_seq
        self._frame_refused = frame_refused
        self._health = health
        self._fence = EpochFence()
        self._leader: LeaderAddress | None = None
        self._incarnation = 0
        self._changed = asyncio.Event()
        self._connection: LeaderConnection | None = None
        self._told = ""
        self.state = "down"

    @property
    def standing(self) -> Standing:
        """What this worker is in the cluster; may be asked from any thread."""
        epoch = self._fence.highest
        return Standing(self._incarnation, b"" if epoch is None else epoch.cluster_uid)

    def follow(self, leader: LeaderAddress) -> None:
        """Connect to this leader from now on."""
        if leader != self._leader:
            self._leader = leader
            self._drop("there is a new leader")

    def incarnate(self, incarnation: int) -> None:
        """Speak under this registration from now on; numbering starts over, on a link of its own."""
        self._incarnation = incarnation
        self._drop("this worker registered anew")
        self._feed(events.Incarnated(incarnation))

    def publish(self, messages: list[instructions.ToLeader]) -> None:
        """Send these in order, or drop them if no link stands."""
        connection = self._connection
        if connection is None or not connection.up:
            return
        try:
            for message in messages:
                connection.send(message)
        except (LinkClosed, FrameRefused) as error:
            connection.abort(str(error))

    async def run(self) -> None:
        """Keep a link, until cancelled."""
        backoff = _FIRST_BACKOFF
        while True:
            while self._leader is None or not self._incarnation:
                await self._wait_changed(None)
            self._changed.clear()
            began = time.monotonic()
            reason = await self._one_link(self._leader)
            self._health.ill(_PART, reason)
            if time.monotonic() - began > _LAST_BACKOFF:
                backoff = _FIRST_BACKOFF
            if await self._wait_changed(backoff * random.uniform(0.5, 1.0)):  # noqa: S311
                backoff = _FIRST_BACKOFF
            else:
                backoff = min(2 * backoff, _LAST_BACKOFF)

    async def _one_link(self, leader: LeaderAddress) -> str:
        """Connect and stay connected; returns why it ended."""
        try:
            self._connection = connection = await self._connect(leader)
            try:
                await self._greet(connection, leader)
                reason = await self._stay(connection)
            finally:
                self._down(connection, "the link is given up")
            _log.warning("leader link down", extra=fields(leader=leader.node, reason=reason))
            return reason
        except _Refused as error:
            self.doubt()
            self.state = "refused"
            self._tell(logging.WARNING if isinstance(error, _NotLeading) else logging.ERROR, "refused", leader, error)
            return str(error)
        except (OSError, LinkClosed) as error:
            self.doubt()
            self.state = "down"
            self._tell(logging.WARNING, "failed", leader, error)
            return f"leader {leader.node} at {leader.address}: {error}"

    def _tell(self, level: int, what: str, leader: LeaderAddress, error: Exception) -> None:
        """Aloud when it is new; the same one again, at each of the retries, is a whisper."""
        repeated, self._told = str(error) == self._told, str(error)
        said = fields(leader=leader.node, at=leader.address, reason=error)
        _log.log(logging.DEBUG if repeated else level, f"leader link {what}", extra=said)

    async def _connect(self, leader: LeaderAddress) -> LeaderConnection:
        loop = asyncio.get_running_loop()
        host, port = leader.address.host, leader.address.port
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                transport, connection = await loop.create_connection(
                    lambda: LeaderConnection(self._feed, self._frame_refused),
                    host,
                    port,
                    ssl=self._tls,
                    # The name is compared below, with the certificate's CN.
                    server_hostname="" if self._tls else None,
                )
        except TimeoutError:
            raise LinkClosed(f"no connection within {_OPEN_SECONDS:g} s") from None
        if self._tls is not None and peer_name(transport) != leader.node:
            connection.abort("wrong certificate")
            raise _Refused(
                f"the certificate at {leader.address} is of {peer_name(transport)!r}, not of {leader.node!r}"
            )
        return connection

    async def _greet(self, connection: LeaderConnection, leader: LeaderAddress) -> None:
        """Say who we are; the link is up when this returns."""
        connection.send(self._hello(leader.epoch.cluster_uid))
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                await asyncio.wait((connection.answer, connection.over), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise LinkClosed(f"no welcome within {_OPEN_SECONDS:g} s") from None
        if not connection.answer.done():
            # With TLS 1.3 our certificate is looked at when we are connected already, and refused without a word.
            hint = "; if it does not accept this worker's certificate, its log says why" if self._tls else ""
            raise LinkClosed(f"no welcome: {connection.over.result()}{hint}")
        answer = connection.answer.result()
        if isinstance(answer, cluster.LinkRefused):
            kind = _NotLeading if answer.code == "not-leader" else _Refused
            raise kind(f"leader {leader.node} refused ({answer.code}): {answer.detail}")
        epoch = Epoch(answer.cluster_uid, answer.epoch)
        if epoch.cluster_uid != leader.epoch.cluster_uid or not self._fence.admit(epoch, leader.history):
            least = leader.epoch
            if self._fence.highest is not None and epoch.cluster_uid == least.cluster_uid:
                least = self._fence.highest
            raise _Refused(f"leader {leader.node} speaks for {_words(epoch)}, not for {_words(least)} or later")
        connection.up = True
        self.state = "live"
        self._told = ""
        self._health.well(_PART)
        _log.info("leader link up", extra=fields(leader=leader.node, at=leader.address, epoch=epoch.number))
        self._feed(events.LinkUp(epoch, answer.expect_seq, leader.history))
        connection.catch_up()

    def _hello(self, cluster_uid: bytes) -> cluster.WorkerHello:
        return cluster.WorkerHello(
            protocol_min=cluster.PROTOCOL_MIN,
            protocol_max=cluster.PROTOCOL_MAX,
            version=self._identity.version,
            cluster=self._identity.cluster,
            cluster_uid=cluster_uid,
            node=self._identity.node,
            boot_id=self._identity.boot_id,
            incarnation=self._incarnation,
            next_seq=self._next_seq(),
        )

    async def _stay(self, connection: LeaderConnection) -> str:
        """Ping until the link is over; a leader that says nothing for too long is taken for hung."""
        number = 0
        while not connection.over.done():
            silence = time.monotonic() - connection.heard
            if self._changed.is_set():
                connection.abort("leader or registration changed meanwhile")
            elif silence > _SILENCE_SECONDS:
                connection.abort(f"the leader has said nothing for {silence:.1f} s")
            else:
                number += 1
                with contextlib.suppress(LinkClosed):
                    connection.send(cluster.Ping(number))
            await asyncio.wait((connection.over,), timeout=_PING_SECONDS)
        return connection.over.result()

    def _drop(self, reason: str) -> None:
        if self._connection is not None:
            self._down(self._connection, reason)
        self._changed.set()

    def _down(self, connection: LeaderConnection, reason: str) -> None:
        """Tell the core once, also where the link goes before its reader has noticed."""
        connection.abort(reason)
        if connection.up:
            connection.up = False
            self.state = "down"
            self._feed(events.LinkDown())

    async def _wait_changed(self, timeout: float | None) -> bool:
        """True when leader or registration changed, False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True
