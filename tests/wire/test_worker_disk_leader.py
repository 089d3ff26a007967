"""A leader knows of a chunk that left host memory, on which tier it is, and finds it again after a restart."""

from __future__ import annotations

from pathlib import Path

from support.disk_worker import comes_back, disk_worker, store_each, write_out
from support.engine_side import EngineSide, key_of
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for

SECONDS = 40.0
CHUNKS = range(10)


def test_a_leader_tells_which_tier_holds_a_chunk(tmp_path: Path) -> None:
    with (
        EtcdServer() as etcd,
        LeaderProcess(etcd.endpoint, "leader") as leader,
        disk_worker(tmp_path, cluster="test", etcd=etcd.endpoint, lease_ttl="2s") as worker,
        EngineSide(worker.socket) as engine,
    ):
        engine.wait_attached()
        write_out(engine, worker, CHUNKS)
        wait_tiers(leader, ["host", "disk"])
        store_each(engine, range(100, 170))
        wait_tiers(leader, ["disk"])
        assert comes_back(engine, CHUNKS[0])
        wait_tiers(leader, ["host", "disk"])
        keys = ",".join(key_of(number).hex() for number in CHUNKS)
        status, content = leader.get(f"/v1/match?keys={keys}")
        assert status == 200
        assert [(one["length"], one["tiers"]["disk"]) for one in content["workers"]] == [(len(CHUNKS), len(CHUNKS))]
        worker.kill()
        worker.start()
        wait_tiers(leader, ["disk"])
        engine.wait_attached()
        assert comes_back(engine, CHUNKS[0])
        wait_tiers(leader, ["host", "disk"])
        assert leader.get("/debug/invariants") == (200, {"broken": None})


def wait_tiers(leader: LeaderProcess, tiers: list[str]) -> None:
    """Wait until the worker holds the first chunk on exactly these tiers, as the leader says."""

    def told() -> bool:
        status, content = leader.get(f"/v1/where?key={key_of(CHUNKS[0]).hex()}")
        holders = content.get("holders", ())
        return status == 200 and [(one["node"], one["tiers"], one["stale"]) for one in holders] == [
            ("test-node", tiers, False)
        ]

    wait_for(told, SECONDS, f"the chunk is told to be on {tiers}", leader.log)
