"""A leader core with a clock and workers of its own, for scenarios of the form "given this, then that".

Owns the clock and the making of messages. Every event is followed by a check of all invariants.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

from blockyard.common.digests import RollingDigests
from blockyard.common.fencing import Epoch
from blockyard.common.messages import cluster as wire
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core import events
from blockyard.leader.core.instructions import CloseLink, Instruction, SendTo
from blockyard.leader.core.leader import LeaderCore
from blockyard.leader.core.requests import Answer, Request
from blockyard.leader.core.settings import LeaderSettings

UID = b"u" * 16
OTHER_UID = b"v" * 16
HOST, DISK, GPU = wire.TIER_HOST, wire.TIER_DISK, wire.TIER_GPU
WORLD = wire.World(0, b"f" * 32, "a-model", [(0, 256)])

M = TypeVar("M", bound=wire.ToWorker)


def key(number: int) -> bytes:
    """A key; all of its bytes vary as a digest's do, and those of small numbers are in buckets of their own."""
    return bytes([number * 37 % 256]) + hashlib.sha256(number.to_bytes(8, "big")).digest()[1:]


def change(number: int, tiers: int = HOST, world: int = 0) -> wire.Change:
    return wire.Change(key(number), tiers, 4096, 0, world)


def delta(seq: int, *changes: wire.Change, worlds: tuple[wire.World, ...] = (WORLD,)) -> wire.Delta:
    return wire.Delta(seq, list(worlds), list(changes))


def snapshot(seq: int, *changes: wire.Change, part: int = 2) -> list[wire.FromWorker]:
    """A whole snapshot as of delta `seq`, in parts."""
    parts = [wire.SnapshotPart(list(changes[i : i + part])) for i in range(0, len(changes), part)]
    return [
        wire.SnapshotBegin(seq, len(changes), [WORLD]),
        *parts,
        wire.SnapshotEnd(seq, len(changes)),
    ]


def digests(seq: int, *changes: wire.Change) -> wire.Digests:
    """What a worker that holds these says of it as of delta `seq`."""
    rolling = RollingDigests()
    for one in changes:
        rolling.flip(one.key, one.tiers)
    return wire.Digests(seq, rolling.packed())


def hello(node: str = "n1", incarnation: int = 5, next_seq: int = 1, **fields: object) -> wire.WorkerHello:
    said = {
        "protocol_min": wire.PROTOCOL_MIN,
        "protocol_max": wire.PROTOCOL_MAX,
        "version": "0.0.1",
        "cluster": "test",
        "cluster_uid": UID,
        "node": node,
        "boot_id": b"b" * 16,
        "incarnation": incarnation,
        "next_seq": next_seq,
    }
    return wire.WorkerHello(**{**said, **fields})


class World:
    """One core. What it instructs is returned by each call."""

    def __init__(self, *, leads: bool = True, **settings: object) -> None:
        self.counters = Counters("leader")
        self.core = LeaderCore(LeaderSettings("test", "9.9.9", **settings), self.counters)
        self.now = 100.0
        self._next_link = 1
        if leads:
            self.lead()
            self.put(events.WorkersListed(()))

    def put(self, event: events.Event) -> list[Instruction]:
        done = self.core.handle(self.now, event)
        self.core.validate()
        return done

    def lead(self, number: int = 3, uid: bytes = UID) -> list[Instruction]:
        return self.put(events.BecameLeader(Epoch(uid, number)))

    def register(
        self, node: str = "n1", incarnation: int = 5, boot_id: bytes = b"", peer: str = ""
    ) -> list[Instruction]:
        return self.put(events.WorkerRegistered(node, incarnation, events.WorkerInfo(boot_id.hex(), peer=peer)))

    def unregister(self, node: str = "n1", incarnation: int = 5) -> list[Instruction]:
        return self.put(events.WorkerUnregistered(node, incarnation))

    def open(self, said: wire.WorkerHello) -> tuple[int, list[Instruction]]:
        link, self._next_link = self._next_link, self._next_link + 1
        return link, self.put(events.LinkOpened(link, said))

    def say(self, link: int, *messages: wire.FromWorker) -> list[Instruction]:
        done: list[Instruction] = []
        for message in messages:
            done += self.put(events.Received(link, message))
        return done

    def tick(self, seconds: float = 0.1) -> list[Instruction]:
        self.now += seconds
        return self.put(events.Tick())

    def worker(self, node: str = "n1", *changes: wire.Change, incarnation: int = 5) -> int:
        """A registered, linked worker in step that holds these; its next delta is 1."""
        self.register(node, incarnation)
        link, _ = self.open(hello(node, incarnation))
        self.say(link, *snapshot(0, *changes))
        return link

    def peer(self, node: str, *changes: wire.Change, incarnation: int = 5, **said: object) -> int:
        """The same, of a worker that serves peers."""
        self.register(node, incarnation, peer=f"{node}:7503")
        link, _ = self.open(hello(node, incarnation, **said))
        self.say(link, *snapshot(0, *changes, part=wire.MAX_CHANGES))
        return link

    def ask(self, request: Request) -> tuple[Answer, list[Instruction]]:
        """A request of people."""
        answer, done = self.core.ask(self.now, request)
        self.core.validate()
        return answer, done

    def corrupt(self, node: str, *changes: wire.Change) -> None:
        """Make the index wrong about what a node holds, behind the back of its claims."""
        self.core.index.apply(self.core.members.by_node[node].claims.holder, changes)
        self.core.validate()

    def holders(self, number: int) -> dict[str, int]:
        """Tiers by node, as /v1/where would say."""
        return {holding.node: holding.tiers for holding in self.core.where(key(number))}


def sent(done: list[Instruction], kind: type[M]) -> list[M]:
    """The messages of one kind among the instructions."""
    return [one.message for one in done if isinstance(one, SendTo) and isinstance(one.message, kind)]


def closed(done: list[Instruction]) -> dict[int, str]:
    """Why which link is to be closed."""
    return {one.link: one.reason for one in done if isinstance(one, CloseLink)}
