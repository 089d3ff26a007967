"""One seed's world: etcd, two leaders, workers, engines, and the faults that befall them. Owns the phases of a run:

chaos     faults and load at once
healing   no more faults; what was killed is started again; a little more load
quiet     no new requests; within a bound of virtual time everything must have settled
failover  the leader dies; within the bound the other one must have taken over
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from blockyard.common.messages import attach, cluster
from blockyard.worker.core.peers.settings import PeerSettings
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.disk.settings import StoreSettings
from sim.broken import Broken
from sim.clock import Clock
from sim.disk import ModelDisk
from sim.disk_side import SimDisk, core_settings
from sim.engine import Engine
from sim.etcd_server import EtcdServer
from sim.faults import Fault, draw_faults
from sim.injection import Injector
from sim.leader_node import LeaderNode
from sim.liveness import unsettled
from sim.load import Conversations, shapes
from sim.network import Network
from sim.process import Process
from sim.streams import Streams
from sim.violation import Violation
from sim.worker_node import WorkerNode

CHAOS = 8.0
HEALING = 1.5
BOUND = 40.0
"""Virtual seconds within which a healed world must have settled. The longest waits that add up to it: a lease to
expire, the pins' time to live, a fill's deadline, breakers and backoffs at their longest.
"""
_LOOK = 0.25
_PAGE = 4096


class World:
    """`run` it once; raises Violation."""

    def __init__(self, seed: int, broken: Broken, keep: Callable[[Fault], bool]) -> None:
        self.seed = seed
        self.broken = broken
        self.streams = Streams(seed)
        self.clock = Clock()
        self.network = Network(self.clock, self.streams.of)
        self.etcd = EtcdServer(self.clock)
        self.wall = 1.7e9
        self.numbers: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.quiet = False
        self.healed_at: float | None = None
        self.election_disturbed_until = 0.0
        self.workers: dict[str, WorkerNode] = {}
        self.zombies: list[WorkerNode] = []
        self.leaders: dict[str, LeaderNode] = {}
        self.engines: list[Engine] = []
        self.disks: dict[str, list[SimDisk]] = {}
        self.strangers: list[Engine] = []
        self.foreign: WorkerNode | None = None
        self._lives: Counter[str] = Counter()
        self._injector = Injector(self)
        self.faults = draw_faults(self.streams, CHAOS)
        self._kept = [fault for fault in self.faults if keep(fault)]
        draw = self._draw = self.streams.of("world")
        self.requests_per_second = draw.choice([2.0, 5.0, 10.0])
        self.all_verify = draw.random() < 0.4
        self._shapes = shapes(draw)
        self._talks = [Conversations(shape, self.streams.of(f"talks/{shape.name}")) for shape in self._shapes]
        self._limits = _limits(self.streams)
        sharing = self.streams.of("sharing")
        self._sharing = sharing.random() < 0.5
        """Engines on several nodes have the same conversations, so that workers need each other's chunks."""
        self._nodes = sharing.choice([2, 3])

    def run(self) -> None:
        """All phases, to the end or to the first violation."""
        self._begin()
        for fault in self._kept:
            self.clock.run_until(fault.at)
            if self._injector.inject(fault):
                self.injected[fault.kind] += 1
        self.clock.run_until(CHAOS)
        self._heal()
        self.clock.run_until(CHAOS + HEALING)
        self.quiet = True
        self._settle()
        self.healed_at = self.clock.now - CHAOS
        self._fail_over()

    def process(self, name: str) -> Process:
        self._lives[name] += 1
        full = f"{name}.{self._lives[name]}"
        return Process(self.clock, full, self.streams.of(f"process/{full}"))

    def start_worker(self, node: str, beside: WorkerNode | None = None) -> None:
        """A worker of this node, unless one runs; `beside` one, it is on another machine under the same name."""
        current = self.workers.get(node)
        if current is not None and current.process.alive and current is not beside:
            return
        machine = node if current is None else current.machine
        if beside is not None:
            machine += "'"
        process = self.process(node)
        boot = self.streams.of(f"boot/{process.name}").randbytes(16)
        disks = self._disks_of(machine)
        limits = self._limits | {
            "disk": core_settings(disks, self.streams.of("disk limits")),
            "peers": _peer_settings(self.streams.of("peer limits")),
        }
        settings = CoreSettings(node=node, boot_id=boot, version="sim", **limits)  # type: ignore[arg-type]
        worker = self.workers[node] = WorkerNode(self, node, machine, process, settings, disks)
        worker.speaks = self._highest_spoken(process.name)

    def _disks_of(self, machine: str) -> list[SimDisk]:
        """The directories of a machine, the same for each worker that runs there."""
        if machine not in self.disks:
            draw = self.streams.of(f"disks/{machine}")
            self.disks[machine] = [_disk(self.clock, draw) for _ in range(draw.choice([0, 1, 1, 2]))]
        return self.disks[machine]

    def start_leader(self, name: str) -> None:
        if name in self.leaders and self.leaders[name].process.alive:
            return
        self.leaders[name] = LeaderNode(self, name, self.process(name))

    def start_engine(self, slot: int) -> None:
        """The engine of one place: its node and world stay, its id is new."""
        draw = self.streams.of(f"place/{slot}")
        nodes = sorted(self.workers)
        node = nodes[slot % len(nodes)] if self._sharing else draw.choice(nodes)
        talks = self._talks[0] if self._sharing else draw.choice(self._talks)
        verifies = self.all_verify or draw.random() < 0.5
        self._lives[f"engine{slot}"] += 1
        name = f"engine{slot}.{self._lives[f'engine{slot}']}"
        protocol = (attach.PROTOCOL_MIN, self._highest_spoken(name))
        engine = Engine(self, name, self.workers[node].machine, talks.shape, talks, verifies, protocol)
        self.engines.append(engine)
        for process in engine.processes:
            process.on_death(lambda: self._restart(slot, engine))

    def _highest_spoken(self, name: str) -> int:
        """Some processes are of an older release."""
        old = self.streams.of(f"protocol/{name}").random() < 0.2
        return attach.PROTOCOL_MIN if old else attach.PROTOCOL_MAX

    def _restart(self, slot: int, engine: Engine) -> None:
        if any(process.alive for process in engine.processes) or engine not in self.engines:
            return
        self.engines.remove(engine)
        self.numbers["requests cut short"] += len(engine.scheduler.open_requests)
        self.clock.after(0.3 + self._draw.random(), lambda: self.start_engine(slot))

    def _begin(self) -> None:
        draw = self._draw
        nodes = draw.choice([1, 2])
        for i in range(self._nodes if self._sharing else nodes):
            self.start_worker(f"node{i}")
        for name in ("leader0", "leader1"):
            self.start_leader(name)
        engines = draw.choice([1, 2, 3])
        for slot in range(max(3, engines) if self._sharing else engines):
            self.start_engine(slot)
        if draw.random() < 0.15:
            self._admit_strangers()
        self.clock.after(draw.uniform(0.5, CHAOS), self.etcd.back_up)

    def _admit_strangers(self) -> None:
        """An engine and a worker that speak a protocol of the future."""
        talks = self._talks[0]
        future = (attach.PROTOCOL_MAX + 1, attach.PROTOCOL_MAX + 2)
        self.strangers.append(Engine(self, "stranger", "node0", talks.shape, talks, False, protocol=future))
        process = self.process("foreign")
        settings = CoreSettings(node="foreign", boot_id=b"f" * 16, version="sim", **self._limits)  # type: ignore[arg-type]
        future = (cluster.PROTOCOL_MAX + 1, cluster.PROTOCOL_MAX + 2)
        self.foreign = WorkerNode(self, "foreign", "foreign", process, settings, protocol=future)

    def _dismiss_strangers(self) -> None:
        """Nobody has let them in."""
        for engine in self.strangers:
            if engine.scheduler.attached or any(rank.attached for rank in engine.ranks):
                raise Violation("versions-meet", f"{engine.name} is attached")
            self.numbers["strangers refused"] += any(rank.refusal == "version" for rank in engine.ranks)
            engine.kill("both")
        if self.foreign is not None:
            self.foreign.process.kill()

    def _heal(self) -> None:
        """Nothing is down, paused, stalled or slow any more; zombies stay, awake."""
        self._dismiss_strangers()
        self.etcd.start()
        self.etcd.frozen_until = 0.0
        self.network.clog = 0.0
        for pipe in list(self.network.pipes):
            for end in pipe.ends:
                end.stalled_until = 0.0
                pipe.pump(end)
        for disk in (one for disks in self.disks.values() for one in disks):
            disk.heal()
        for worker in [*self.workers.values(), *self.zombies]:
            worker.process.wake()
            worker.checksums.delay, worker.checksums.failing = 0.0005, False
            worker.peers.lies = False
        for leader in self.leaders.values():
            leader.process.wake()
        for engine in self.engines:
            for process in engine.processes:
                process.wake()
        for node in list(self.workers):
            self.start_worker(node)
        for name in list(self.leaders):
            self.start_leader(name)
        # Where a zombie was killed the whole machine is gone: its engines are started elsewhere.
        hosts = {worker.machine for worker in [*self.workers.values(), *self.zombies] if worker.process.alive}
        for engine in self.engines:
            if engine.machine not in hosts:
                engine.kill("both")

    def _fail_over(self) -> None:
        """Whoever leads dies, for good: the other one must notice and know all again."""
        for leader in list(self.leaders.values()):
            if leader.sure():
                del self.leaders[leader.name]
                leader.process.kill()
        self._settle()

    def _settle(self) -> None:
        end = self.clock.now + BOUND
        while left := unsettled(self):
            if self.clock.now >= end:
                raise Violation("live-after-heal", f"after {BOUND:g} s: {'; '.join(left[:4])}")
            self.clock.run_until(self.clock.now + _LOOK)


def _disk(clock: Clock, draw: random.Random) -> SimDisk:
    """Small enough to be full now and then."""
    settings = StoreSettings(0, 0, draw.choice([16, 40]) * _PAGE)
    cap = draw.choice([4, 8]) * (settings.segment_bytes + settings.log_bytes) + settings.reserve_bytes
    model = ModelDisk(clock, draw, draw.choice([cap, 2 * cap]))
    return SimDisk(model, settings._replace(cap_bytes=cap), draw, lambda: clock.now)


def _peer_settings(draw: random.Random) -> PeerSettings:
    """Limits, some so tight that they are met; in a few seeds nobody knows of peers."""
    return PeerSettings(
        enabled=draw.random() < 0.9,
        locate_wait=draw.choice([0.02, 0.1]),
        fetch_wait=draw.choice([0.3, 2.0]),
        fetching_share=draw.choice([0.2, 1.0]),
        max_batch=draw.choice([1, 16]),
        max_tries=draw.choice([1, 3]),
        max_questions=draw.choice([1, 64]),
        max_hints=draw.choice([4, 1024]),
        max_serving=draw.choice([2, 64]),
    )


def _limits(streams: Streams) -> dict[str, int | float]:
    """Sizes and limits, some so tight that they are met."""
    draw = streams.of("limits")
    slab = 12 * _PAGE
    return {
        "pool_bytes": draw.choice([2, 4, 6, 10]) * slab,
        "slab_bytes": slab,
        "min_slot": _PAGE,
        "pin_ttl": draw.choice([1.0, 3.0]),
        "fill_deadline": draw.choice([1.0, 3.0]),
        "ranks_deadline": 2.0,
        "max_sessions": draw.choice([12, 256]),
        "max_pins_per_engine": draw.choice([6, 64]),
        "max_fills_per_engine": draw.choice([4, 64]),
        "max_jobs_per_engine": draw.choice([2, 64]),
        "max_parked": draw.choice([1, 16]),
        "max_ghosts": 16,
        "outbox_changes": draw.choice([6, 512]),
        "outbox_deltas": draw.choice([2, 64]),
        "snapshot_parts_per_tick": draw.choice([1, 8]),
        "snapshot_part_keys": 4,
        "digest_interval": 1.0,
        "max_hints_per_session": draw.choice([2, 64]),
    }
