"""What must be true of a worker's books, read from outside: its metrics, its slot table, and what the leader says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from blockyard.common.metrics.spec import Part
from blockyard.common.metrics.table import EQUALITIES, TABLE
from blockyard.common.slot_table import SlotState
from support.host_pool import OpenedPool
from support.leader_process import LeaderProcess, wait_for
from support.worker_process import WorkerProcess

AGREE_S = 40.0


def imbalances(worker: WorkerProcess) -> list[str]:
    """Equalities of the metrics table that this worker's /metrics does not keep."""
    totals: Counter[str] = Counter()
    for family in text_string_to_metric_families(worker.get("/metrics")[1]):
        for sample in family.samples:
            totals[sample.name] += int(sample.value)
    return [
        f"{one.name}: {one.whole} {totals[one.whole]} is not the sum of {[totals[part] for part in one.parts]}"
        for one in EQUALITIES
        if TABLE[one.whole].part is Part.WORKER and totals[one.whole] != sum(totals[part] for part in one.parts)
    ]


def check_idle(worker: WorkerProcess) -> None:
    """Wait until nothing is pinned, filling, loading, doomed or unverified; then everything must add up."""
    worker.wait_metric("loads_in_flight", 0)
    worker.wait_metric("fills_in_flight", 0)
    worker.wait_metric("pins", 0)
    worker.wait_metric("slots", 0, state="filling")
    worker.wait_metric("slots", 0, state="doomed")
    worker.wait_metric("checksum_backlog", 0)
    assert imbalances(worker) == []


def slots_by_key(worker: WorkerProcess, state: SlotState) -> dict[bytes, tuple[int, int]]:
    """Offset and generation of the slot of each chunk in this state, as the slot table shows it to engines."""
    with OpenedPool(worker.pid) as pool:
        return {record.key: (record.offset, record.generation) for record in pool.records() if record.state is state}


def wait_leader_agrees(leader: LeaderProcess, worker: WorkerProcess, node: str) -> None:
    """Wait until the leader knows of each chunk that this idle worker holds, and of no other."""
    keys = slots_by_key(worker, SlotState.READY)
    assert keys

    def agrees() -> bool:
        status, content = leader.get("/v1/workers")
        known = [one["keys"] for one in content.get("workers", ()) if one["node"] == node]
        return status == 200 and known == [len(keys)] and all(_holds(leader, node, key) for key in keys)

    wait_for(agrees, AGREE_S, f"the leader knows {len(keys)} chunks", lambda: str(leader.get("/v1/workers")))


def wait_index_is(leader: LeaderProcess, workers: Mapping[str, WorkerProcess]) -> None:
    """Wait until the leader's index is the union of what these workers hold ready and checked, and nothing else."""
    holders: defaultdict[bytes, set[str]] = defaultdict(set)
    for node, worker in workers.items():
        check_idle(worker)
        for key in slots_by_key(worker, SlotState.READY):
            holders[key].add(node)
    counts = {node: sum(node in nodes for nodes in holders.values()) for node in workers}
    assert all(counts.values())

    def agrees() -> bool:
        status, content = leader.get("/v1/workers")
        known = {one["node"]: one["keys"] for one in content.get("workers", ())}
        return (status, known) == (200, counts) and all(_held_by(leader, key) == holders[key] for key in holders)

    wait_for(agrees, AGREE_S, f"the index is {counts}", lambda: str(leader.get("/v1/workers")) + leader.log())
    assert leader.get("/debug/invariants") == (200, {"broken": None})


def _held_by(leader: LeaderProcess, key: bytes) -> set[str] | None:
    """Nodes of which a whole index says that they hold a key; None where it is not whole or sure."""
    status, content = leader.get(f"/v1/where?key={key.hex()}")
    holders = content.get("holders", ())
    certain = status == 200 and not content["partial"] and not any(one["stale"] for one in holders)
    return {one["node"] for one in holders} if certain else None


def _holds(leader: LeaderProcess, node: str, key: bytes) -> bool:
    status, content = leader.get(f"/v1/where?key={key.hex()}")
    holders = [(one["node"], one["stale"]) for one in content.get("holders", ())]
    return status == 200 and not content["partial"] and holders == [(node, False)]
