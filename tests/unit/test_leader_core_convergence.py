"""The leader's core under faults: after them, the index equals the union of what the workers hold.

A seed draws its own mix of faults: deltas lost, doubled and late, links and registrations lost, leadership lost,
forgetful workers, an index that goes wrong by itself. Invariants are checked after every event. One seed alone:
`pytest -k "seed17"`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events
from blockyard.leader.core.instructions import CloseLink, Instruction, SendTo
from blockyard.leader.core.matching import Prefix
from support.leader_world import DISK, GPU, HOST, WORLD, World, change, digests, hello, key

SEEDS = range(60)
STEPS = 400
KEYS = 12
NODES = ("n1", "n2", "n3")
TIERS = (("gpu", GPU), ("host", HOST), ("disk", DISK))


class Worker:
    """A worker's side of the stream, as plain as can be: a truth, a log of deltas, and messages under way."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.incarnation = 0
        self.link: int | None = None
        self.truth: dict[int, int] = {}
        self.log: list[wire.Delta | wire.Replacement] = []
        self.next_seq = 1
        self.offered: list[Any] = []
        self.sent = 0
        self.under_way: list[wire.FromWorker] = []

    def restart_stream(self, incarnation: int) -> None:
        self.incarnation, self.log, self.next_seq = incarnation, [], 1

    def set(self, number: int, tiers: int) -> None:
        self.truth[number] = tiers
        self.number(wire.Delta(self.next_seq, [WORLD], [change(number, tiers)]))

    def number(self, message: wire.Delta | wire.Replacement) -> None:
        self.log.append(message)
        self.next_seq += 1
        if self.link is not None:
            self.under_way.append(message)

    def tell_digests(self) -> None:
        if self.link is not None:
            self.under_way.append(digests(self.next_seq - 1, *self._held()))

    def hear(self, message: wire.ToWorker) -> None:
        match message:
            case wire.SnapshotCredit(seq, parts) if self.offered and seq == self.offered[0].seq:
                self.under_way += self._send(parts)
            case wire.Repair(buckets):
                for bucket in buckets:
                    self.number(wire.Replacement(self.next_seq, [WORLD], self._held(bucket), bucket, 0, 255))
            case wire.LinkWelcome(expect_seq=seq) | wire.Resync(from_seq=seq):
                kept_from = self.log[0].seq if self.log else self.next_seq
                if seq and seq >= kept_from:
                    self.under_way += [delta for delta in self.log if delta.seq >= seq]
                else:
                    self._offer()
            case wire.Ack(seq):
                self.log = [delta for delta in self.log if delta.seq > seq]

    def _held(self, bucket: int | None = None) -> list[wire.Change]:
        held = [change(number, tiers) for number, tiers in self.truth.items() if tiers]
        return [one for one in held if bucket in (None, one.key[0])]

    def _offer(self) -> None:
        """A snapshot as of now, in parts of one key."""
        held, seq = self._held(), self.next_seq - 1
        parts = [wire.SnapshotPart([one]) for one in held]
        self.offered = [wire.SnapshotBegin(seq, len(held), [WORLD]), *parts, wire.SnapshotEnd(seq, len(held))]
        self.sent = 0
        self.under_way.append(wire.SnapshotOffer(seq, len(held)))

    def _send(self, credit: int) -> list[wire.FromWorker]:
        """The begin, as many parts as there is credit for, and the end after the last one."""
        until = 1 + credit if credit < len(self.offered) - 2 else len(self.offered)
        messages = self.offered[self.sent : until]
        self.sent = max(self.sent, until)
        return messages


class Cluster:
    """A leader core, its workers and what goes wrong between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(
            claim_grace=self.random.choice([3.0, 1000.0]),
            resync_patience=2.0,
            sweep_keys=5,
            snapshots_at_once=self.random.choice([1, 2]),
            snapshot_window=self.random.choice([1, 3]),
            digest_interval=1.0,
        )
        self.workers = [Worker(node) for node in NODES]
        self.revision = 10
        self.loss = self.random.choice([0.0, 0.02, 0.2])
        self.disorder = self.random.choice([0.0, 0.1, 0.5])
        self.corrupted = False
        usual = [self.change, self.deliver, self.tick, self.digest]
        rare = [self.corrupt, self.reconnect, self.reregister, self.unregister, self.forget, self.lose_leadership]
        self.deeds = self.random.choices(
            [*usual, *rare],
            weights=[30, 60, 10, 5, *(self.random.choice([0, 1, 4]) for _ in rare)],
            k=STEPS,
        )

    def carry_out(self, done: list[Instruction]) -> None:
        for one in done:
            for worker in self.workers:
                if worker.link != one.link:
                    continue
                match one:
                    case SendTo(_, message):
                        worker.hear(message)
                    case CloseLink():
                        self.hang_up(worker)

    def put(self, event: events.Event) -> None:
        self.carry_out(self.world.put(event))

    def hang_up(self, worker: Worker) -> None:
        link, worker.link, worker.under_way = worker.link, None, []
        if link is not None:
            self.put(events.LinkClosed(link))

    # What may happen.

    def change(self) -> None:
        worker = self.random.choice(self.workers)
        worker.set(self.random.randrange(KEYS), self.random.choice([0, HOST, HOST, DISK, HOST | DISK, GPU]))

    def deliver(self) -> None:
        worker = self.random.choice(self.workers)
        if worker.link is None or not worker.under_way:
            return
        first = worker.under_way[0]
        if isinstance(first, wire.Delta):
            if self.random.random() < self.loss:
                worker.under_way.pop(0)
                return
            if self.random.random() < self.disorder:
                later = next((m for m in worker.under_way[1:] if isinstance(m, wire.Delta)), first)
                self.put(events.Received(worker.link, later))
                return
        worker.under_way.pop(0)
        self.put(events.Received(worker.link, first))

    def tick(self) -> None:
        self.carry_out(self.world.tick(self.random.choice([0.1, 0.1, 1.0])))

    def digest(self) -> None:
        self.random.choice(self.workers).tell_digests()

    def corrupt(self) -> None:
        """The leader's index is wrong about one key, and nothing has told it so."""
        worker = self.random.choice(self.workers)
        if worker.node in self.world.core.members.by_node:
            self.corrupted = True
            self.world.corrupt(worker.node, change(self.random.randrange(KEYS), self.random.choice([0, HOST, GPU])))

    def reconnect(self) -> None:
        worker = self.random.choice(self.workers)
        if self.random.random() < 0.5:
            self.hang_up(worker)
        else:
            worker.under_way = []
        if worker.incarnation:
            self.open(worker)

    def open(self, worker: Worker) -> None:
        link, done = self.world.open(hello(worker.node, worker.incarnation, worker.next_seq))
        worker.link = link
        self.carry_out(done)

    def reregister(self) -> None:
        worker = self.random.choice(self.workers)
        self.revision += 1
        overtakes = self.random.random() < 0.5
        worker.restart_stream(self.revision)
        if overtakes:
            worker.under_way = []
            self.open(worker)
        self.put(events.WorkerRegistered(worker.node, worker.incarnation))

    def unregister(self) -> None:
        worker = self.random.choice(self.workers)
        self.revision += 1
        self.put(events.WorkerUnregistered(worker.node, self.revision))

    def forget(self) -> None:
        """A worker whose outbox ran over has no range to offer."""
        self.random.choice(self.workers).log = []

    def lose_leadership(self) -> None:
        self.put(events.LostLeadership())
        self.revision += 1
        self.world.lead(self.revision)

    def heal(self) -> None:
        """All faults end: each worker is registered and linked, and everything under way arrives."""
        for worker in self.workers:
            self.hang_up(worker)
            if worker.node not in self.world.core.members.by_node:
                self.revision += 1
                worker.restart_stream(self.revision)
                self.put(events.WorkerRegistered(worker.node, worker.incarnation))
        if self.world.core.awaits_list:
            listed = tuple(events.WorkerRegistered(worker.node, worker.incarnation) for worker in self.workers)
            self.put(events.WorkersListed(listed))
        for worker in self.workers:
            self.open(worker)
        for step in range(120):
            for worker in self.workers:
                while worker.under_way and worker.link is not None:
                    self.put(events.Received(worker.link, worker.under_way.pop(0)))
                if step % 4 == 0:
                    worker.tell_digests()
            self.carry_out(self.world.tick(0.5))

    def held(self, number: int) -> dict[str, int]:
        return {w.node: w.truth[number] for w in self.workers if w.truth.get(number)}

    def longest(self, numbers: list[int]) -> list[Prefix]:
        """The longest prefixes by the workers' truth, counted one key at a time."""
        found = []
        for worker in self.workers:
            tiers = [worker.truth.get(number, 0) for number in numbers]
            if tiers[0]:
                runs = {name: run([mask & bit for mask in tiers]) for name, bit in TIERS}
                found.append(Prefix(worker.node, run(tiers), **runs))
        return sorted(found, key=lambda prefix: (-prefix.length, prefix.node))


def run(flags: list[int]) -> int:
    return next((position for position, flag in enumerate(flags) if not flag), len(flags))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_after_faults_the_index_is_the_union_of_the_workers_truth(seed: int) -> None:
    cluster = Cluster(seed)
    for deed in cluster.deeds:
        deed()
    cluster.heal()
    core = cluster.world.core
    assert not core.partial
    assert core.degraded() == []
    drifted = cluster.world.counters.get("blockyard_leader_drifted_buckets_total")
    assert cluster.corrupted or not drifted
    for number in range(KEYS):
        assert cluster.world.holders(number) == cluster.held(number), core.story(key(number))
    assert core.index.swept
    assert core.index.keys == sum(bool(cluster.held(number)) for number in range(KEYS))
    for _ in range(20):
        numbers = cluster.random.sample(range(KEYS), cluster.random.randint(1, KEYS))
        assert core.match([key(number) for number in numbers]) == cluster.longest(numbers)
    assert all(not worker.log for worker in cluster.workers)
