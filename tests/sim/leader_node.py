"""A leader process around the production LeaderCore: election, roster, links. Owns the same order of steps as
production's service, election, roster and worker_links; decides nothing.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.config import Address
from blockyard.common.etcd.errors import EtcdError
from blockyard.common.etcd.key_state import Held, KeyState
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync, WatchEvent
from blockyard.common.fencing import Epoch, parse_uid
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.link import LinkClosed
from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events
from blockyard.leader.core.instructions import CloseLink, SendTo
from blockyard.leader.core.leader import LeaderCore
from blockyard.leader.core.settings import LeaderSettings
from sim.checks import LeaderChecks
from sim.etcd_client import EtcdClient
from sim.leased_key import SimLeasedKey
from sim.process import Process
from sim.tasks import Signal
from sim.worker_link import PREFIX

if TYPE_CHECKING:
    from sim.world import World

LEADER_TTL = 2
LINK_PORT = 7400
TICK = 0.1
STALL = 1.0
SILENCE = 4.0
HELLO_TIMEOUT = 2.0

SETTINGS = LeaderSettings(
    "sim",
    "sim",
    registration_wait=1.2,
    claim_grace=6.0,
    resync_patience=2.0,
    snapshots_at_once=1,
    snapshot_window=2,
    digest_interval=1.0,
    sweep_keys=64,
    journal_changes=4096,
)


class LeaderNode:
    """One life of a leader process."""

    def __init__(self, world: World, name: str, process: Process) -> None:
        self.world = world
        self.name = name
        self.process = process
        self.core = LeaderCore(SETTINGS, started=process.clock.now)
        self.checks = LeaderChecks(self)
        self.links: dict[int, WorkerSide] = {}
        self.open: dict[WorkerSide, None] = {}
        self.drifted: set[str] = set()
        """Workers about which the index was made wrong."""
        self.numbers = itertools.count(1)
        self._draw = world.streams.of(f"leader/{process.name}")
        self._etcd = EtcdClient(world.etcd, process, world.streams.of(f"etcd/{process.name}"))
        self._ticked = process.clock.now
        self._tenure = Signal()
        address = Address(process.name, LINK_PORT)
        self._record = {"node": name, "link": str(address)}
        value = json.dumps(self._record).encode()
        terms = LeaseTerms(LEADER_TTL, LEADER_TTL / 4)
        self._key = SimLeasedKey(self._etcd, process, f"{PREFIX}/leader", value, terms, self._alive, self._note)
        world.network.listen(f"tcp:{address}", process, lambda: WorkerSide(self))
        for work in (self._key.run(), self._announce(), self._follow(), self._tick(), self._look()):
            process.spawn(work)

    # Service.

    def feed(self, event: events.Event) -> None:
        self.leading()
        self._handle(event)

    def leading(self) -> bool:
        if self.core.epoch is None:
            return False
        if self._holds():
            return True
        self._lose()
        return False

    def sure(self) -> bool:
        """Whether it may answer as leader now; changes nothing."""
        return self.process.alive and self.core.epoch is not None and self._key.held(self.process.clock.now)

    def _holds(self) -> bool:
        held = self._key.held(self.process.clock.now)
        if not held:
            self._tenure.set()
        return held

    def _lose(self) -> None:
        if self.core.epoch is not None:
            self._handle(events.LostLeadership())

    def _alive(self) -> bool:
        return self.process.clock.now - self._ticked < STALL

    async def _tick(self) -> None:
        while True:
            self._ticked = self.process.clock.now
            self.feed(events.Tick())
            await self.process.sleep(TICK)

    def _handle(self, event: events.Event) -> None:
        done = self.core.handle(self.process.clock.now, event)
        for instruction in done:
            link = self.links.get(instruction.link)
            if link is None:
                continue
            match instruction:
                case SendTo(_, message):
                    link.tell(message)
                case CloseLink(_, reason):
                    link.close(reason)
        self.checks.after(event, done)

    # Election.

    def _note(self, state: KeyState) -> None:
        self._tenure.set()
        if not isinstance(state, Held):
            self._lose()

    async def _announce(self) -> None:
        while True:
            if not await self._tenure.wait(self.process, 60.0):
                continue
            state = self._key.state
            if isinstance(state, Held) and not await self._announced(state):
                await self.process.sleep(0.3)
                self._tenure.set()

    async def _announced(self, state: Held) -> bool:
        server = self.world.etcd
        fresh = bytes(self._draw.randrange(256) for _ in range(16)).hex().encode()
        try:
            _, found = await self._etcd.call(lambda: server.create_if_absent(f"{PREFIX}/uid", fresh))
            current: KeyValue | None = await self._etcd.call(lambda: server.get(f"{PREFIX}/leader"))
        except EtcdError:
            return False
        if not self._key.confirms(state, current, self.process.clock.now):
            return False
        uid = parse_uid(found.value)
        self._key.set_value(json.dumps(self._record | {"uid": uid.hex()}).encode())
        epoch = Epoch(uid, state.create_revision)
        if epoch != self.core.epoch:
            self.checks.leads(epoch)
            self._handle(events.BecameLeader(epoch))
        return True

    # Roster.

    async def _follow(self) -> None:
        while True:
            watch = self._etcd.watch(f"{PREFIX}/workers/")
            try:
                listed = False
                while not (listed and self.core.awaits_list):
                    event = await watch.next(0.5)
                    if event is not None:
                        listed = listed or isinstance(event, Resync)
                        self._hand_on(event)
            finally:
                watch.close()

    def _hand_on(self, event: WatchEvent) -> None:
        match event:
            case Resync(listing=listing):
                self.feed(events.WorkersListed(tuple(self._registration(kv) for kv in listing.kvs)))
            case KeyPut(kv=kv):
                self.feed(self._registration(kv))
            case KeyDeleted(key=key, revision=revision):
                self.feed(events.WorkerUnregistered(key.rsplit("/", 1)[1], revision))

    def _registration(self, kv: KeyValue) -> events.WorkerRegistered:
        said = json.loads(kv.value)
        info = events.WorkerInfo(said["boot_id"], peer=said["peer"])
        return events.WorkerRegistered(kv.key.rsplit("/", 1)[1], kv.create_revision, info)

    # Links.

    async def _look(self) -> None:
        while True:
            now = self.process.clock.now
            for link in list(self.open):
                if now - link.heard > (SILENCE if link.number else HELLO_TIMEOUT):
                    link.abort("silence")
            await self.process.sleep(0.5)


class WorkerSide(FrameProtocol[wire.FromWorker]):
    """One worker's link at the leader."""

    def __init__(self, leader: LeaderNode) -> None:
        super().__init__(Decoder(wire.FromWorker), wire.MAX_FRAME)
        self._leader = leader
        self.number = 0
        self.hello: wire.WorkerHello | None = None
        self.heard = leader.process.clock.now
        leader.open[self] = None

    def tell(self, message: wire.ToWorker) -> None:
        try:
            self.send(message)
        except (LinkClosed, FrameRefused) as error:
            self.abort(str(error))

    def received(self, message: wire.FromWorker) -> None:
        self.heard = self._leader.process.clock.now
        if self.number:
            self._leader.feed(events.Received(self.number, message))
        elif isinstance(message, wire.WorkerHello):
            self.hello = message
            self.number = next(self._leader.numbers)
            self._leader.links[self.number] = self
            self._leader.feed(events.LinkOpened(self.number, message))
        else:
            self.tell(wire.LinkRefused("hello", "the first message is not a hello"))
            self.close("hello")

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        self._leader.checks.refused(error)
        self.abort(str(error))

    def lost(self, reason: str) -> None:
        self._leader.open.pop(self, None)
        if self._leader.links.pop(self.number, None) is not None:
            self._leader.feed(events.LinkClosed(self.number))
