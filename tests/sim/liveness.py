"""When a healed world has settled. Owns the list of what must be true in the end; changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from blockyard.common.metrics.equalities import broken
from blockyard.worker.core.chunks import ChunkState
from blockyard.worker.core.hints import Hints
from sim.violation import Violation
from sim.worker_link import PREFIX

if TYPE_CHECKING:
    from sim.engine import Engine
    from sim.leader_node import LeaderNode
    from sim.worker_node import WorkerNode
    from sim.world import World


def unsettled(world: World) -> list[str]:
    """What is not yet as it must be, one line each; empty when all is."""
    left: list[str] = []
    for engine in world.engines:
        if engine.scheduler.open_requests:
            left.append(f"{engine.name} has open requests {sorted(engine.scheduler.open_requests)[:3]}")
        if not engine.alive or not engine.attached:
            left.append(f"{engine.name} is not attached to {engine.machine}")
        else:
            left += _hints(world, engine)
    owners = registered(world)
    for worker in [*world.workers.values(), *world.zombies]:
        if worker.process.alive:
            left += _worker(worker, worker is owners.get(worker.node))
    left += [f"{node} is not registered" for node in world.workers if node not in owners]
    leading = [leader for leader in world.leaders.values() if leader.sure()]
    if len(leading) != 1:
        return [*left, f"{len(leading)} leaders lead"]
    return left + _index(world, leading[0])


def _hints(world: World, engine: Engine) -> list[str]:
    """The worker keeps what this session's requests said and have not ended, but for those it had no room for."""
    told = {request: Hints.of(said) for request, said in engine.scheduler.told.items()}
    for worker in [*world.workers.values(), *world.zombies]:
        session = worker.core.book.live(engine.scheduler.session) if worker.machine == engine.machine else None
        if session is None or not worker.process.alive:
            continue
        dropped = worker.counters.get("blockyard_worker_hints_dropped_total")
        if session.hints != told and not (dropped and session.hints.items() <= told.items()):
            return [f"{worker.node} keeps hints of {sorted(session.hints)}, {engine.name} told of {sorted(told)}"]
    return []


def registered(world: World) -> dict[str, WorkerNode]:
    """Whom etcd knows under each name: of two that were given the same one, one waits for ever."""
    owners: dict[str, WorkerNode] = {}
    for kv in world.etcd.listing(f"{PREFIX}/workers/").kvs:
        for worker in [*world.workers.values(), *world.zombies]:
            said = json.loads(kv.value)
            if worker.process.alive and (worker.node, worker.settings.boot_id.hex()) == (said["node"], said["boot_id"]):
                owners[worker.node] = worker
    return owners


def _worker(worker: WorkerNode, is_member: bool) -> list[str]:
    core = worker.core
    slots = core.holdings.slots
    facts = {
        "chunks are being filled": slots[ChunkState.FILLING],
        "slots are doomed": slots[ChunkState.DOOMED],
        "chunks have no checksum": core.holdings.unchecked,
        "grants stand": len(core.grants.grants),
        "jobs are open": len(core.reservations.fills.jobs),
        "resolves wait": len(core.reservations.fills.parked),
        "schedulers wait for ranks": len(core.book.waiting),
        "acquires wait for reads": len(core.pinning.waiting),
        "operations are under way on disk": len(core.disk.operations.all),
        "devices are left alone": sum(not one.breaker.closed for one in core.disk.directories.all),
        "directories are not known": sum(not one.recovered for one in core.disk.directories.all),
        "chunks wait to be written": len(core.holdings.spills),
        "fetches from peers are under way": len(core.peers.fetching.by_op),
        "questions are waited for": len(core.peers.questions.waited_for()),
        "chunks are held for peers": core.peers.serving.chunks,
    }
    if is_member and not core.outbox.settled:
        facts["changes are not acknowledged"] = max(1, core.outbox.depth)
    left = [f"{worker.node}: {count} {what}" for what, count in facts.items() if count]
    if left:
        return left
    core.show_gauges()
    if unequal := broken(worker.counters):
        raise Violation("misses-explained", f"{worker.node}: {unequal[0]}")
    return []


def _index(world: World, leader: LeaderNode) -> list[str]:
    """index-converges: the leader shows exactly what the workers hold and have checked."""
    core = leader.core
    if core.partial:
        return [f"{leader.name} knows only a part"]
    held = {
        worker.node: {key: tiers for key, _, tiers in worker.core.holdings.shared()}
        for worker in registered(world).values()
    }
    shown: dict[str, dict[bytes, int]] = {node: {} for node in held}
    for key, _ in core.index.entries():
        for holding in core.where(key):
            shown.setdefault(holding.node, {})[key] = holding.tiers
    return [
        f"{leader.name} shows {len(shown[node])} keys of {node}, it has {len(held.get(node, {}))}"
        for node in shown
        if shown[node] != held.get(node, {})
    ]
