"""A lease says that a main loop makes progress, not that a process lives: of one that is stuck it is left to expire,
and of one that lost it for another reason it is had anew, with all that the worker holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support import stalls
from support.attach_client import Engine, key
from support.child_process import ChildProcess
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.worker_process import WorkerProcess

SECONDS = 40.0
CONTENT = b"x" * 8192


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.mark.parametrize("stall", [stalls.block, stalls.hold_ticks], ids=["blocked", "not-ticking"])
def test_who_is_stuck_loses_its_lease_and_is_as_good_as_before_when_it_goes_on(
    etcd: EtcdServer, stall: Callable[[ChildProcess], None]
) -> None:
    with (
        LeaderProcess(etcd.endpoint, "stuck", program=stalls.PROGRAM) as old,
        WorkerProcess(cluster="test", etcd=etcd.endpoint, lease_ttl="2s", program=stalls.PROGRAM) as worker,
        Engine(worker.socket) as engine,
    ):
        engine.store({key(1): CONTENT})
        wait_for(lambda: holders(old) == ["test-node"], SECONDS, "the leader knows of the chunk", old.log)
        incarnation, term = worker.metric("incarnation"), old.get("/v1/workers")[1]["epoch"]
        with LeaderProcess(etcd.endpoint, "sound") as sound:
            stall(old)
            stall(worker)
            entry = "/blockyard/test/workers/test-node"
            wait_for(lambda: not etcd.ctl("get", entry), SECONDS, "the worker's lease ends", lambda: worker.log)
            sound.wait_leads(SECONDS)
            assert sound.get("/v1/workers")[1]["workers"] == []
            stall(worker)
            wait_for(lambda: holders(sound) == ["test-node"], SECONDS, "the chunk is known", lambda: worker.log)
            assert worker.metric("incarnation") > incarnation
            assert engine.load(engine.acquire([key(1)]), [key(1)]) == [CONTENT]
            stall(old)
            wait_for(lambda: old.get("/readyz")[1].get("leader"), SECONDS, "it stands by", old.log)
            assert (old.leads(), sound.leads()) == (False, True)
            assert sound.get("/v1/workers")[1]["epoch"] > term


def holders(leader: LeaderProcess) -> list[str]:
    """Nodes that hold the chunk, as the leader says."""
    status, content = leader.get(f"/v1/where?key={key(1).hex()}")
    return [holder["node"] for holder in content["holders"]] if status == 200 else []
