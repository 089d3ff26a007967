"""A whole cluster under load: three leaders, two workers with small pools, one restless engine at each.

Owns the parts but etcd, who of the leaders leads, and what must hold for the cluster at any moment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from support.closing import Closing
from support.engine_load import EngineLoad
from support.leader_process import LeaderProcess, wait_for
from support.worker_books import wait_index_is
from support.worker_process import WorkerProcess

# Several lease times on a machine that is busy with other things. What is aimed at is told, not asserted.
PATIENCE_S = 40.0
LEASE_S = 2
LEADERS = ("leader-a", "leader-b", "leader-c")
WORKERS = ("node-1", "node-2")


class LiveCluster(Closing):
    """`with LiveCluster(endpoints) as cluster:` is led, linked and under load; `secured` has settings per node."""

    def __init__(self, etcd: str, secured: Callable[[str], dict[str, str]] = lambda node: {}) -> None:
        self.leaders = [LeaderProcess(etcd, node, ttl=f"{LEASE_S}s", **secured(node)) for node in LEADERS]
        self.workers = {node: _worker(etcd, node, secured(node)) for node in WORKERS}
        self._loads: list[EngineLoad] = []
        self._left = ExitStack()

    def __enter__(self) -> LiveCluster:
        with ExitStack() as stack:
            parts = (*self.workers.values(), *self.leaders)
            for part in parts:
                stack.push(part)
            for part in parts:
                part.start()
            for number, worker in enumerate(self.workers.values(), 1):
                self._loads.append(stack.enter_context(EngineLoad(worker.socket, number)))
            for worker in self.workers.values():
                wait_for(lambda w=worker: w.metric("evictions_total") > 0, PATIENCE_S, "the pool is full")
            self.settled(self.wait_leader())
            self._left = stack.pop_all()
        return self

    def close(self) -> None:
        self._left.close()

    def wait_leader(self, *, without: Sequence[LeaderProcess] = ()) -> LeaderProcess:
        """Wait until one alone leads, with a whole index, among those that live and are not left out."""
        able = [leader for leader in self.leaders if leader.alive and leader not in without]
        found: list[LeaderProcess] = []

        def one_leads() -> bool:
            found[:] = [one for one in able if _whole(one)]
            return len(found) == 1

        wait_for(
            one_leads,
            PATIENCE_S,
            "one leads and is not partial",
            lambda: "".join(leader.log()[-1500:] for leader in able),
        )
        return found[0]

    def settled(self, leader: LeaderProcess) -> None:
        """No engine has noticed anything, and the leader's index is right while the load rests for a moment."""
        for load in self._loads:
            load.check()
        with ExitStack() as stack:
            for load in self._loads:
                stack.enter_context(load.paused())
            wait_index_is(leader, self.workers)
            for load, worker in zip(self._loads, self.workers.values(), strict=True):
                _check_unnoticed(load, worker)

    def take_over(self, old: LeaderProcess) -> tuple[LeaderProcess, str]:
        """Wait until another than `old`, just lost, leads with the right index; which, and how long it took."""
        begun = time.monotonic()
        leader = self.wait_leader(without=[old])
        whole = time.monotonic() - begun
        self.settled(leader)
        return leader, f"whole {whole:.2f} s, index compared {time.monotonic() - begun:.2f} s after the loss"

    def incarnations(self) -> dict[str, float]:
        """Each worker's present registration."""
        return {node: worker.metric("incarnation") for node, worker in self.workers.items()}

    def wait_registered(self) -> None:
        """Wait until every worker is registered and linked."""
        for worker in self.workers.values():
            worker.wait_metric("etcd_registration", 1, state="registered")
            worker.wait_metric("leader_link", 1, state="live")


def epoch(leader: LeaderProcess) -> int:
    """The term in which it leads; 0 while it does not."""
    status, content = leader.get("/v1/workers")
    return int(content["epoch"]) if status == 200 else 0


def _check_unnoticed(load: EngineLoad, worker: WorkerProcess) -> None:
    """By the books of both sides: the engine's every lookup was answered, every copy ended well, no session ended."""
    load.check_never_detached()
    assert worker.metric("acquire_requests_total") == load.lookups
    wait_for(lambda: _answers(worker) == load.lookups, PATIENCE_S, "each answer came to the engine, which says so")
    for count in ("fills_refused_total", "fills_dropped_total", "loads_refused_total", "loads_failed_total"):
        assert not worker.counted(count), count
    for role in ("rank", "scheduler"):
        assert worker.metric("sessions", role=role, state="live") == 1
        assert worker.metric("sessions", role=role, state="lost") == 0


def _answers(worker: WorkerProcess) -> float:
    """Lookups whose answer has come to the engine, as the engine has told its worker."""
    found = re.findall(r"^blockyard_engine_acquire_seconds_count\{.*\} (\S+)$", worker.get("/metrics")[1], re.MULTILINE)
    return sum(map(float, found))


def _whole(leader: LeaderProcess) -> bool:
    """Whether it leads, knows who is registered, and has heard from each of them."""
    status, content = leader.get("/readyz")
    return status == 200 and not content["partial"] and not content["degraded"]


def _worker(etcd: str, node: str, secured: dict[str, str]) -> WorkerProcess:
    # Room for 64 of the load's chunks.
    sizes = {"host_pool": "2MiB", "slab_size": "1MiB"}
    return WorkerProcess(cluster="test", etcd=etcd, lease_ttl=f"{LEASE_S}s", node_id=node, **sizes, **secured)
