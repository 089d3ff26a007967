"""The leader's core under faults: after them, the index equals the union of what the workers hold.

A seed draws its own mix of faults: deltas lost, doubled and late, links and registrations lost, leadership lost,
forgetful workers. Invariants are checked after every event. One seed alone: `pytest -k "seed17"`.
"""

from __future__ import annotations

import random

import pytest

from blockyard.common.messages import cluster as wire
from blockyard.leader.core import events
from blockyard.leader.core.instructions import CloseLink, Instruction, SendTo
from blockyard.leader.core.matching import Prefix
from support.leader_world import DISK, GPU, HOST, WORLD, World, change, hello, key

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
        self.log: list[wire.Delta] = []
        self.next_seq = 1
        self.under_way: list[wire.FromWorker] = []

    def restart_stream(self, incarnation: int) -> None:
        self.incarnation, self.log, self.next_seq = incarnation, [], 1

    def set(self, number: int, tiers: int) -> None:
        self.truth[number] = tiers
        self.log.append(wire.Delta(self.next_seq, [WORLD], [change(number, tiers)]))
        self.next_seq += 1
        if self.link is not None:
            self.under_way.append(self.log[-1])

    def hear(self, message: wire.ToWorker) -> None:
        match message:
            case wire.LinkWelcome(expect_seq=seq) | wire.Resync(from_seq=seq):
                kept_from = self.log[0].seq if self.log else self.next_seq
                if seq and seq >= kept_from:
                    self.under_way += [delta for delta in self.log if delta.seq >= seq]
                else:
                    self.under_way += self._snapshot()
            case wire.Ack(seq):
                self.log = [delta for delta in self.log if delta.seq > seq]

    def _snapshot(self) -> list[wire.FromWorker]:
        held = [change(number, tiers) for number, tiers in self.truth.items() if tiers]
        seq = self.next_seq - 1
        parts = [wire.SnapshotPart(held[i : i + 3]) for i in range(0, len(held), 3)]
        return [
            wire.SnapshotBegin(seq, len(held), [WORLD]),
            *parts,
            wire.SnapshotEnd(seq, len(held)),
        ]


class Cluster:
    """A leader core, its workers and what goes wrong between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(claim_grace=self.random.choice([3.0, 1000.0]), resync_patience=2.0, sweep_keys=5)
        self.workers = [Worker(node) for node in NODES]
        self.revision = 10
        self.loss = self.random.choice([0.0, 0.02, 0.2])
        self.disorder = self.random.choice([0.0, 0.1, 0.5])
        usual = [self.change, self.deliver, self.tick]
        rare = [self.reconnect, self.reregister, self.unregister, self.forget, self.lose_leadership]
        self.deeds = self.random.choices(
            [*usual, *rare],
            weights=[30, 60, 10, *(self.random.choice([0, 1, 4]) for _ in rare)],
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
        for _ in range(60):
            for worker in self.workers:
                while worker.under_way and worker.link is not None:
                    self.put(events.Received(worker.link, worker.under_way.pop(0)))
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
    for number in range(KEYS):
        assert cluster.world.holders(number) == cluster.held(number), core.story(key(number))
    assert core.index.swept
    assert core.index.keys == sum(bool(cluster.held(number)) for number in range(KEYS))
    for _ in range(20):
        numbers = cluster.random.sample(range(KEYS), cluster.random.randint(1, KEYS))
        assert core.match([key(number) for number in numbers]) == cluster.longest(numbers)
    assert all(not worker.log for worker in cluster.workers)
