"""What of a worker faces etcd and the leader: registration, finding the leader, the link. Owns the same steps in the
same order as production's registration, leader_finder and leader_link; the lease machine, what the election key means
and the fence are the production ones.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.etcd.errors import EtcdError
from blockyard.common.etcd.key_state import Held, KeyState
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.etcd.values import KeyValue
from blockyard.common.fencing import Epoch, EpochFence
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.link import LinkClosed
from blockyard.common.messages import cluster
from blockyard.worker.core import events, instructions
from blockyard.worker.core.peers import wire as peers
from blockyard.worker.election_key import ElectionKey, LeaderAddress
from sim.etcd_client import EtcdClient
from sim.leased_key import SimLeasedKey
from sim.tasks import Future, Signal

if TYPE_CHECKING:
    from sim.worker_node import WorkerNode

PREFIX = "/blockyard/sim"
WORKER_TTL = 3
_OPEN_SECONDS = 2.0
_PING_SECONDS = 0.5
_SILENCE_SECONDS = 2.0
_FIRST_BACKOFF = 0.1
_LAST_BACKOFF = 1.0


class _Refused(Exception):
    """We or the leader will not have this link."""


class _Connection(FrameProtocol[cluster.ToWorker]):
    def __init__(self, worker: WorkerNode) -> None:
        super().__init__(Decoder(cluster.ToWorker), cluster.MAX_FRAME)
        self._worker = worker
        self.answer: Future[cluster.LinkWelcome | cluster.LinkRefused] = Future()
        self.over: Future[str] = Future()
        self.heard = worker.process.clock.now
        self.up = False
        self._early: list[cluster.Peers] = []

    def received(self, message: cluster.ToWorker) -> None:
        self.heard = self._worker.process.clock.now
        match message:
            case cluster.LinkWelcome() | cluster.LinkRefused() if not self.answer.done:
                self.answer.resolve(message)
            case cluster.Pong():
                pass
            case cluster.Ack(seq) if self.up:
                self._worker.feed(events.LinkAcked(seq))
            case cluster.Resync(from_seq) if self.up:
                self._worker.feed(events.ResyncAsked(from_seq))
            case cluster.SnapshotCredit(seq, parts) if self.up:
                self._worker.feed(events.SnapshotCredited(seq, parts))
            case cluster.Repair(buckets) if self.up:
                self._worker.feed(events.RepairAsked(buckets))
            case cluster.Peers(named) if self.up:
                self._worker.feed(peers.PeersKnown(named))
            case cluster.Located(number, whole, spans) if self.up:
                self._worker.feed(peers.Located(number, whole, spans))
            case cluster.Peers() if self.answer.done and not self.over.done:
                self._early.append(message)
            case _:
                self.abort("not expected here")

    def catch_up(self) -> None:
        """The link is up: take in what came right behind the welcome."""
        for message in self._early:
            self.received(message)

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        self._worker.checks.refused(error)
        self.abort(str(error))

    def lost(self, reason: str) -> None:
        self.over.resolve(reason)


class WorkerLink:
    """Runs in the worker's process."""

    def __init__(self, worker: WorkerNode) -> None:
        self._worker = worker
        self._process = worker.process
        self._etcd = EtcdClient(
            worker.world.etcd, worker.process, worker.world.streams.of(f"etcd/{self._process.name}")
        )
        self._fence = EpochFence()
        self._leader: LeaderAddress | None = None
        self._election = ElectionKey()
        self._doubted = False
        self.incarnation = 0
        self._changed = Signal()
        self._connection: _Connection | None = None
        said = {"node": worker.node, "boot_id": worker.settings.boot_id.hex(), "peer": worker.peers.address}
        value = json.dumps(said).encode()
        self._key = SimLeasedKey(
            self._etcd,
            self._process,
            f"{PREFIX}/workers/{worker.node}",
            value,
            LeaseTerms(WORKER_TTL, 0.2 * WORKER_TTL),
            worker.progresses,
            self._registered,
            take_over=True,
        )

    def start(self) -> None:
        for work in (self._key.run(), self._find(), self._run()):
            self._process.spawn(work)

    def publish(self, messages: list[instructions.ToLeader]) -> None:
        connection = self._connection
        if connection is None or not connection.up:
            return
        try:
            for message in messages:
                connection.send(message)
        except (LinkClosed, FrameRefused) as error:
            connection.abort(str(error))

    def _registered(self, state: KeyState) -> None:
        if isinstance(state, Held) and state.create_revision != self.incarnation:
            self.incarnation = state.create_revision
            self._drop()
            self._worker.feed(events.Incarnated(self.incarnation))

    # Finding the leader.

    async def _find(self) -> None:
        while True:
            watch = self._etcd.watch(f"{PREFIX}/leader")
            try:
                self._doubted = False
                while not self._doubted:
                    event = await watch.next(1.0)
                    entry = None if event is None else self._election.heard(event)
                    if entry is not None:
                        await self._found(entry)
            except EtcdError:
                await self._process.sleep(1.0)
            finally:
                watch.close()

    async def _found(self, entry: KeyValue) -> None:
        server = self._worker.world.etcd
        uid: KeyValue | None = await self._etcd.call(lambda: server.get(f"{PREFIX}/uid"))
        leader = self._election.leader(entry, uid)
        if leader != self._leader:
            self._leader = leader
            self._drop()

    # The link.

    async def _run(self) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            while self._leader is None or not self.incarnation:
                await self._changed.wait(self._process, 60.0)
            self._changed.clear()
            began = self._process.clock.now
            await self._one_link(self._leader)
            if self._process.clock.now - began > _LAST_BACKOFF:
                backoff = _FIRST_BACKOFF
            pause = backoff * self._worker.draw.uniform(0.5, 1.0)
            if await self._changed.wait(self._process, pause):
                backoff = _FIRST_BACKOFF
            else:
                backoff = min(2 * backoff, _LAST_BACKOFF)

    async def _one_link(self, leader: LeaderAddress) -> None:
        connection = _Connection(self._worker)
        if not await self._worker.world.network.connect(self._process, f"tcp:{leader.address}", connection):
            self._doubted = True
            return
        self._connection = connection
        try:
            await self._greet(connection, leader)
            await self._stay(connection)
        except (_Refused, LinkClosed):
            self._doubted = True
        finally:
            if self._process.alive:
                self._down(connection)

    async def _greet(self, connection: _Connection, leader: LeaderAddress) -> None:
        connection.send(self._hello(leader.epoch.cluster_uid))
        answered: Future[None] = Future()
        connection.answer.when_done(lambda: answered.resolve(None))
        connection.over.when_done(lambda: answered.resolve(None))
        if not await self._process.within(answered, _OPEN_SECONDS) or not connection.answer.done:
            raise LinkClosed("no welcome")
        answer = connection.answer.value
        if not isinstance(answer, cluster.LinkWelcome):
            self._worker.checks.turned_away(answer)
            raise _Refused
        epoch = Epoch(answer.cluster_uid, answer.epoch)
        if epoch.cluster_uid != leader.epoch.cluster_uid or not self._fence.admit(epoch, leader.history):
            raise _Refused
        connection.up = True
        self._worker.checks.linked(epoch, leader.history)
        self._worker.feed(events.LinkUp(epoch, answer.expect_seq, leader.history))
        connection.catch_up()

    def _hello(self, uid: bytes) -> cluster.WorkerHello:
        low, high = self._worker.protocol
        node, boot = self._worker.node, self._worker.settings.boot_id
        next_seq = self._worker.core.next_seq
        return cluster.WorkerHello(low, high, "sim", "sim", uid, node, boot, self.incarnation, next_seq)

    async def _stay(self, connection: _Connection) -> None:
        number = 0
        while not connection.over.done:
            if self._changed.is_set:
                connection.abort("leader or registration changed meanwhile")
            elif self._process.clock.now - connection.heard > _SILENCE_SECONDS:
                connection.abort("silence")
            else:
                number += 1
                with contextlib.suppress(LinkClosed):
                    connection.send(cluster.Ping(number))
            await self._process.within(connection.over, _PING_SECONDS)

    def _drop(self) -> None:
        if self._connection is not None:
            self._down(self._connection)
        self._changed.set()

    def _down(self, connection: _Connection) -> None:
        connection.abort("given up")
        if connection.up:
            connection.up = False
            self._worker.feed(events.LinkDown())
