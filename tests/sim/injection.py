"""Makes faults happen in a world, and ends them. Owns what each kind does; a fault without a target does nothing and is
not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from blockyard.common.slot_table import PAGE
from blockyard.worker.core import events
from blockyard.worker.core.sessions import Session, SessionState
from sim.drift import corrupt
from sim.faults import LEADER_DRIFT, Fault
from sim.leader_node import LEADER_TTL
from sim.network import Pipe
from sim.process import Process
from sim.worker_link import PREFIX
from support.disk_faults import READS, WRITES, Kind
from support.disk_faults import Fault as DiskFault

if TYPE_CHECKING:
    from sim.disk_side import SimDisk
    from sim.engine import Engine
    from sim.rank import Rank
    from sim.worker_node import WorkerNode
    from sim.world import World

T = TypeVar("T")

_PATIENCE = 1.5
"""Seconds that a fault waits for its moment."""


class Injector:
    """`inject` returns whether there was something to hit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self._kinds: dict[str, Callable[[Fault], bool]] = {
            "worker-kill": self._worker_kill,
            "worker-pause": lambda f: self._pause(self._one(f, self._workers()), _long(f)),
            "worker-slow": lambda f: self._slow(self._one(f, self._workers()), f),
            "worker-zombie": self._worker_zombie,
            "leader-kill": self._leader_kill,
            "leader-pause": lambda f: self._pause(self._one(f, self._leaders()), _long(f)),
            LEADER_DRIFT: self._leader_drift,
            "leader-slow": lambda f: self._slow(self._one(f, self._leaders()), f),
            "etcd-down": self._etcd_down,
            "etcd-pause": self._etcd_pause,
            "etcd-wipe": self._etcd_wipe,
            "etcd-restore": self._etcd_restore,
            "etcd-compact": self._etcd_compact,
            "etcd-key-deleted": self._key_deleted,
            "link-cut": lambda f: self._cut(self._one(f, world.network.between("tcp:"))),
            "link-stall": lambda f: self._stall(self._one(f, world.network.between("tcp:")), f),
            "network-clog": self._clog,
            "session-cut": lambda f: self._cut(self._one(f, world.network.between("unix:"))),
            "session-stall": lambda f: self._stall(self._one(f, world.network.between("unix:")), f),
            "checksum-slow": self._checksum_slow,
            "checksum-failing": self._checksum_failing,
            "bytes-spoilt": self._bytes_spoilt,
            "engine-kill-scheduler-first": lambda f: self._engine_kill(f, "scheduler"),
            "engine-kill-rank-first": lambda f: self._engine_kill(f, "rank"),
            "engine-kill-both": lambda f: self._engine_kill(f, "both"),
            "rank-pause": lambda f: self._pause(self._busy_rank(f), _long(f)),
            "scheduler-pause": lambda f: self._pause(self._one(f, self._schedulers()), _long(f)),
            "false-death": self._false_death,
            "clock-jump": self._clock_jump,
            "disk-failing": lambda f: self._disk(f, (Kind.EIO, Kind.EROFS, Kind.EIO)),
            "disk-full": lambda f: self._disk(f, (Kind.ENOSPC,)),
            "disk-lying": self._disk_lying,
            "disk-hanging": self._disk_hanging,
            "disk-slow": self._disk_slow,
            "power-cut": self._power_cut,
            "peer-cut": lambda f: self._wait_for_transfer(f, self._cut),
            "peer-stall": lambda f: self._wait_for_transfer(f, lambda pipe: self._stall(pipe, f)),
            "peer-lying": self._peer_lying,
        }

    def inject(self, fault: Fault) -> bool:
        return self._kinds[fault.kind](fault)

    # Workers and leaders.

    def _worker_kill(self, fault: Fault) -> bool:
        worker = self._one(fault, [one for one in self._world.workers.values() if one.process.alive])
        if worker is None:
            return False
        worker.process.kill()
        self._clock.after(3 * fault.size, lambda: self._world.start_worker(worker.node))
        return True

    def _worker_zombie(self, fault: Fault) -> bool:
        """A worker stops for a while, is taken for dead, and another one is started under its name."""
        worker = self._one(fault, [one for one in self._world.workers.values() if one.process.alive])
        if worker is None:
            return False
        worker.process.pause(1 + 6 * fault.size)
        self._world.zombies.append(worker)
        self._clock.after(fault.size, lambda: self._world.start_worker(worker.node, beside=worker))
        return True

    def _leader_kill(self, fault: Fault) -> bool:
        leader = self._one(fault, [one for one in self._world.leaders.values() if one.process.alive])
        if leader is None:
            return False
        leader.process.kill()
        self._clock.after(4 * fault.size, lambda: self._world.start_leader(leader.name))
        return True

    def _leader_drift(self, fault: Fault) -> bool:
        """Waits for a leader that knows of a worker; counted when one is found."""
        self._try_leader_drift(fault, self._clock.now + _PATIENCE)
        return False

    def _try_leader_drift(self, fault: Fault, until: float) -> None:
        leading = [leader for leader in self._world.leaders.values() if leader.sure()]
        if any(corrupt(leader, fault.place, fault.size) for leader in leading):
            self._world.injected[fault.kind] += 1
        elif self._clock.now < until:
            self._clock.after(0.05, lambda: self._try_leader_drift(fault, until))

    # etcd.

    def _etcd_down(self, fault: Fault) -> bool:
        self._world.etcd.stop()
        self._clock.after(6 * fault.size, self._world.etcd.start)
        return True

    def _etcd_pause(self, fault: Fault) -> bool:
        self._world.etcd.freeze(5 * fault.size)
        return True

    def _etcd_wipe(self, fault: Fault) -> bool:
        self._world.etcd.stop()
        self._world.etcd.wipe()
        return self._etcd_down(fault)

    def _etcd_restore(self, fault: Fault) -> bool:
        self._world.etcd.stop()
        self._world.etcd.restore()
        # Who led before holds on to a key that is no more, until its lease margin is spent.
        self._world.election_disturbed_until = self._clock.now + 6 * fault.size + LEADER_TTL
        return self._etcd_down(fault)

    def _etcd_compact(self, fault: Fault) -> bool:
        self._world.etcd.compact()
        return True

    def _key_deleted(self, fault: Fault) -> bool:
        """Somebody deletes a registration or the election key by hand."""
        if self._world.etcd.down:
            return False
        keys = [kv.key for kv in self._world.etcd.listing(f"{PREFIX}/").kvs if kv.lease]
        key = self._one(fault, keys)
        if key is None:
            return False
        if key.endswith("/leader"):
            self._world.election_disturbed_until = self._clock.now + 3.0
        self._world.etcd.delete(key)
        return True

    # Connections.

    def _cut(self, pipe: Pipe | None) -> bool:
        if pipe is not None:
            pipe.cut()
        return pipe is not None

    def _stall(self, pipe: Pipe | None, fault: Fault) -> bool:
        """One way, the other, or both."""
        if pipe is None:
            return False
        which = int(fault.size * 1000) % 3
        for end in pipe.ends if which == 2 else pipe.ends[which : which + 1]:
            pipe.stall(end, 8 * fault.size**2)
        return True

    def _wait_for_transfer(self, fault: Fault, hit: Callable[[Pipe | None], bool]) -> bool:
        """Waits until a worker fetches something; counted when one does."""
        self._try_transfer(fault, hit, self._clock.now + _PATIENCE)
        return False

    def _try_transfer(self, fault: Fault, hit: Callable[[Pipe | None], bool], until: float) -> None:
        if hit(self._one(fault, self._world.network.between("peer:"))):
            self._world.injected[fault.kind] += 1
        elif self._clock.now < until:
            self._clock.after(0.003, lambda: self._try_transfer(fault, hit, until))

    def _peer_lying(self, fault: Fault) -> bool:
        """A worker sends other bytes than it says."""
        worker = self._one(fault, self._worker_nodes())
        if worker is not None:
            worker.peers.lies = True
            self._clock.after(3 * fault.size, lambda: setattr(worker.peers, "lies", False))
        return worker is not None

    def _clog(self, fault: Fault) -> bool:
        self._world.network.clog += 0.4 * fault.size
        self._clock.after(2.0, lambda: self._unclog(0.4 * fault.size))
        return True

    def _unclog(self, seconds: float) -> None:
        self._world.network.clog = max(0.0, self._world.network.clog - seconds)

    # Bytes.

    def _checksum_slow(self, fault: Fault) -> bool:
        worker = self._one(fault, self._worker_nodes())
        if worker is not None:
            worker.checksums.delay = 2 * fault.size
            self._clock.after(3.0, lambda: setattr(worker.checksums, "delay", 0.0005))
        return worker is not None

    def _checksum_failing(self, fault: Fault) -> bool:
        worker = self._one(fault, self._worker_nodes())
        if worker is not None:
            worker.checksums.failing = True
            self._clock.after(2 * fault.size, lambda: setattr(worker.checksums, "failing", False))
        return worker is not None

    def _bytes_spoilt(self, fault: Fault) -> bool:
        """Memory goes bad under a checked chunk that nobody copies; only where every engine verifies its loads."""
        worker = self._one(fault, self._worker_nodes())
        if worker is None or not self._world.all_verify:
            return False
        used = worker.memory.copying
        held = [c for c in worker.core.holdings.index.values() if c.checked and not c.copiers and c.slot not in used]
        chunk = self._one(fault, held)
        if chunk is None:
            return False
        first = worker.memory.record(chunk.slot).offset // PAGE
        worker.memory.pages[first] = b"spoilt"
        worker.memory.rotten.add(first)
        return True

    # Disks.

    def _disk(self, fault: Fault, kinds: Sequence[Kind]) -> bool:
        """Each operation fails for a while, or each third."""
        disk = self._one(fault, self._disks())
        if disk is None:
            return False
        kind = kinds[int(1000 * fault.size) % len(kinds)]
        every = DiskFault(kind, times=0, at=1 + int(100 * fault.size) % 3)
        disk.fail(every, 3 * fault.size, self._clock.after)
        return True

    def _disk_lying(self, fault: Fault) -> bool:
        """Some operations do something else than they say."""
        disk = self._one(fault, self._disks())
        if disk is None:
            return False
        kinds = (Kind.TORN, Kind.MISDIRECTED, Kind.FLIPPED, Kind.SHORT)
        kind = kinds[int(1000 * fault.size) % len(kinds)]
        on = WRITES if kind is Kind.TORN else WRITES | READS
        disk.model.inject(DiskFault(kind, on, at=1 + int(10 * fault.size), times=3, where=fault.place))
        return True

    def _disk_hanging(self, fault: Fault) -> bool:
        disk = self._one(fault, self._disks())
        if disk is not None:
            disk.faulty += 1
            disk.model.hang()
            self._clock.after(5 * fault.size, disk.heal)
        return disk is not None

    def _disk_slow(self, fault: Fault) -> bool:
        disk = self._one(fault, self._disks())
        if disk is not None:
            disk.model.latency = 0.3 * fault.size
            self._clock.after(3.0, disk.heal)
        return disk is not None

    def _power_cut(self, fault: Fault) -> bool:
        """A worker's machine loses its power: what was not synced may be gone. Its engines die with it."""
        worker = self._one(fault, [one for one in self._world.workers.values() if one.process.alive and one.disks])
        if worker is None:
            return False
        for engine in [one for one in self._engines() if one.machine == worker.machine]:
            engine.kill("both")
        worker.process.kill()
        for disk in worker.disks:
            disk.model.cut_power()
        self._clock.after(3 * fault.size, lambda: self._world.start_worker(worker.node))
        return True

    # Engines.

    def _engine_kill(self, fault: Fault, first: str) -> bool:
        engine = self._one(fault, self._engines())
        if engine is None:
            return False
        engine.kill(first)
        return True

    def _busy_rank(self, fault: Fault) -> Process | None:
        ranks = [rank for engine in self._engines() for rank in engine.ranks]
        busy = [rank for rank in ranks if rank.memory is not None and rank.copying]
        rank = self._one(fault, busy or ranks)
        return None if rank is None else rank.process

    def _false_death(self, fault: Fault) -> bool:
        """The worker is told that a rank died which only stopped while it loads: its pidfd was of another process.

        Waits for such a rank; counted when one is found.
        """
        self._try_false_death(fault, self._clock.now + _PATIENCE)
        return False

    def _try_false_death(self, fault: Fault, until: float) -> None:
        candidates: list[tuple[WorkerNode, int, Rank]] = []
        for worker in self._worker_nodes():
            for session in worker.core.book.sessions.values():
                rank = self._loading_rank(worker, session)
                if rank is not None:
                    candidates.append((worker, session.id, rank))
        found = self._one(fault, candidates)
        if found is not None:
            worker, number, rank = found
            worker.process.call(lambda: self._declare_dead(worker, number, rank, 1.0 + 5.0 * fault.size))
            self._world.injected[fault.kind] += 1
        elif self._clock.now < until:
            self._clock.after(0.002, lambda: self._try_false_death(fault, until))

    def _loading_rank(self, worker: WorkerNode, session: Session) -> Rank | None:
        process = worker.watched.get(session.id)
        if (
            session.state is not SessionState.LIVE
            or process is None
            or {kind for kind, _ in session.copies} != {"load"}
        ):
            return None
        ranks = [rank for engine in self._engines() for rank in engine.ranks]
        return next((rank for rank in ranks if rank.process is process and rank.copying), None)

    def _declare_dead(self, worker: WorkerNode, number: int, rank: Rank, seconds: float) -> None:
        """Happens when the worker gets to it; by then the rank may have gone on to something else."""
        session = worker.core.book.sessions.get(number)
        if session is None or self._loading_rank(worker, session) is not rank:
            return
        slots = {chunk.slot for copy in session.copies.values() for chunk in copy.chunks if chunk is not None}
        worker.memory.distrusted |= slots & worker.memory.copying.keys()
        rank.process.pause(seconds)
        worker.watched.pop(number)
        worker.feed(events.ProcessGone(number))

    def _clock_jump(self, fault: Fault) -> bool:
        self._world.wall += (fault.size - 0.5) * 1e7
        return True

    # Targets.

    def _disks(self) -> list[SimDisk]:
        return [disk for worker in self._worker_nodes() for disk in worker.disks]

    def _workers(self) -> list[Process]:
        return [worker.process for worker in self._worker_nodes()]

    def _worker_nodes(self) -> list[WorkerNode]:
        return [one for one in self._world.workers.values() if one.process.alive]

    def _leaders(self) -> list[Process]:
        return [one.process for one in self._world.leaders.values() if one.process.alive]

    def _engines(self) -> list[Engine]:
        return [one for one in self._world.engines if one.alive]

    def _schedulers(self) -> list[Process]:
        return [engine.scheduler.process for engine in self._engines()]

    def _one(self, fault: Fault, candidates: Sequence[T]) -> T | None:
        return candidates[int(fault.place * len(candidates))] if candidates else None

    def _pause(self, process: Process | None, seconds: float) -> bool:
        if process is not None:
            process.pause(seconds)
        return process is not None

    def _slow(self, process: Process | None, fault: Fault) -> bool:
        if process is not None:
            process.slow(0.02 * fault.size, 3.0)
        return process is not None


def _long(fault: Fault) -> float:
    """Mostly short, sometimes past every lease and deadline."""
    return 0.02 + 8 * fault.size**3
