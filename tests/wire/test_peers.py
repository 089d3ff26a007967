"""Workers that read from each other: what one has computed is a hit on another, and whoever dies, hangs or lies in the
middle costs a miss, for a time that is bounded, and no slot.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.tls import client_context
from support.authority import Authority
from support.engine_side import EngineSide, key_of, pages, states
from support.etcd_server import EtcdServer, unused_port
from support.host_pool import OpenedPool
from support.leader_process import LeaderProcess, wait_for
from support.light_process import LightProcess
from support.peer_tap import Tap
from support.worker_books import check_idle
from support.worker_process import WorkerProcess

CHUNKS = 24
MIB = 1 << 20
"""Bytes of a chunk of the light engine."""

KEYS = [key_of(number) for number in range(24)]
SIDE_BYTES = 512 << 10
LOOK = 0.4

SECONDS = 40.0
POOL = {"host_pool": "64MiB", "slab_size": "1MiB"}


@pytest.fixture(scope="module")
def leader(etcd: EtcdServer) -> Iterator[LeaderProcess]:
    with LeaderProcess(etcd.endpoint, "leader") as process:
        yield process


@pytest.fixture
def start(etcd: EtcdServer, leader: LeaderProcess) -> Iterator[Callable[..., WorkerProcess]]:
    with contextlib.ExitStack() as stack:

        def started(node: str, **settings: str) -> WorkerProcess:
            usual = {"cluster": "test", "etcd": etcd.endpoint, "peer_listen": "127.0.0.1:0", "node_id": node}
            return stack.enter_context(WorkerProcess(**(usual | POOL | settings)))

        yield started


def engine_at(worker: WorkerProcess, name: str) -> LightProcess:
    return LightProcess(worker.socket, name, geometry="wide", spawn_only=True)


def known(leader: LeaderProcess, keys: list[str], *nodes: str) -> None:
    """Wait until the leader knows these holders of the last key, and of all before it."""

    def told() -> bool:
        content = leader.get(f"/v1/where?key={keys[-1]}")[1]
        return {one["node"] for one in content.get("holders", ())} == set(nodes)

    wait_for(told, SECONDS, f"the leader knows that {nodes} hold it", lambda: str(leader.get("/v1/workers")))


def meets(worker: WorkerProcess, peers: int) -> None:
    """Wait until a worker has been told of so many others."""
    worker.wait_metric("peers", peers)


def check_nothing_left(*workers: WorkerProcess) -> None:
    for worker in workers:
        worker.wait_metric("peer_fetches_in_flight", 0)
        worker.wait_metric("peer_serving_chunks", 0)
        check_idle(worker)
        assert worker.get("/debug/invariants") == (200, '{"broken": null}')


def test_what_one_has_computed_is_a_hit_on_others_also_when_it_has_died(
    leader: LeaderProcess, start: Callable[..., WorkerProcess]
) -> None:
    a, b, c = start("a"), start("b"), start("c")
    for worker in (a, b, c):
        meets(worker, 2)
    with engine_at(a, "one") as one, engine_at(b, "two") as two, engine_at(c, "three") as three:
        for engine in (one, two, three):
            engine.wait_attached()
        stored = one.do("store", "talk", CHUNKS)
        assert stored["stored"] == CHUNKS
        known(leader, stored["keys"], "a")
        assert_read(two, b, CHUNKS)
        assert a.metric("peer_served_chunks_total", state="ok") == CHUNKS
        assert a.metric("peer_sent_bytes_total") == b.metric("peer_read_bytes_total") == CHUNKS * MIB
        known(leader, stored["keys"], "a", "b")
        from_peers, from_here = (b.metric("hit_chunks_total", tier=tier) for tier in ("peer", "host"))
        assert 0 < from_peers <= CHUNKS
        again = two.do("load", "talk", CHUNKS)
        assert (again["hits"], again["wrong"]) == (CHUNKS, 0)
        assert b.metric("hit_chunks_total", tier="host") == from_here + CHUNKS
        wait_leader_agrees_on(leader, "b", CHUNKS)
        # Of two holders one is dead, and the leader does not know yet.
        a.kill()
        assert_read(three, c, CHUNKS)
        check_nothing_left(b, c)


def assert_read(engine: LightProcess, worker: WorkerProcess, chunks: int) -> None:
    """All of it is there, from others. What does not come within one lookup comes with the next."""
    answers = []

    def all_hit() -> bool:
        answers.append(engine.do("load", "talk", chunks))
        assert answers[-1]["wrong"] == 0
        return answers[-1]["hits"] == answers[-1]["loaded"] == chunks

    wait_for(all_hit, SECONDS, "all chunks are hits", lambda: f"{answers}\n{worker.log}")
    assert worker.metric("peer_fetches_completed_total") == chunks


def wait_leader_agrees_on(leader: LeaderProcess, node: str, keys: int) -> None:
    def agrees() -> bool:
        workers = leader.get("/v1/workers")[1]["workers"]
        return [one["keys"] for one in workers if one["node"] == node] == [keys]

    wait_for(agrees, SECONDS, f"{node} holds {keys} chunks")


@pytest.mark.parametrize("fate", ["killed", "frozen"])
def test_who_is_lost_in_the_middle_of_a_transfer_costs_a_bounded_time_and_no_slot(
    leader: LeaderProcess, start: Callable[..., WorkerProcess], fate: str
) -> None:
    port = unused_port()
    with Tap() as tap:
        tap.lead_to(port)
        a = start("a", peer_listen=f"127.0.0.1:{port}", peer_advertise=tap.address)
        b = start("b")
        meets(b, 1)
        with side_at(a) as one, side_at(b) as two:
            store(one, KEYS)
            known(leader, [key.hex() for key in KEYS], "a")
            tap.after(5 * SIDE_BYTES // 2, a.kill if fate == "killed" else a.freeze)
            grant = two.ask(KEYS, wait=LOOK)
            assert tap.acted.wait(SECONDS), "it happened in the middle"
            hits = states(grant).count(KeyState.HIT)
            assert hits < len(KEYS)
            if hits:
                check_loads(two, KEYS[:hits], grant.number)
            two.scheduler.release(grant)
            # The engine computes what it lacks; what hangs may still be written to, so not all of it has room at once.
            wait_for(lambda: stored_and_there(two, KEYS), SECONDS, "what was computed is there", lambda: b.log)
            check_loads(two, KEYS)
            check_nothing_left(b)
            if fate == "frozen":
                a.thaw()
                check_nothing_left(a)


def side_at(worker: WorkerProcess) -> EngineSide:
    return EngineSide(worker.socket, [pages(4 * len(KEYS), SIDE_BYTES // 8) for _ in range(2)])


def store(engine: EngineSide, keys: list[bytes]) -> None:
    engine.wait_attached()
    for index, key in enumerate(keys):
        engine.write(index, key)
    assert set(engine.store(keys).states) <= {CopyState.OK, CopyState.DUPLICATE}


def stored_and_there(engine: EngineSide, keys: list[bytes]) -> bool:
    store(engine, keys)
    grant = engine.ask(keys, wait=LOOK)
    engine.scheduler.release(grant)
    return not any(grant.states)


def check_loads(engine: EngineSide, keys: list[bytes], grant: int | None = None) -> None:
    """These load, and are what was stored."""
    engine.zero()
    blocks = [engine.chunk(index) for index in range(len(keys))]
    if grant is None:
        result = engine.load(keys, blocks)
    else:
        engine.submit_load(keys, blocks, grant)
        result = engine.result()
    assert not any(result.states), result
    assert all(engine.holds(index, key) for index, key in enumerate(keys))


def test_bytes_that_have_changed_at_their_holder_are_not_taken(
    leader: LeaderProcess, start: Callable[..., WorkerProcess]
) -> None:
    a, b = start("a"), start("b")
    meets(b, 1)
    keys = KEYS[:4]
    with side_at(a) as one, side_at(b) as two:
        store(one, keys)
        known(leader, [key.hex() for key in keys], "a")
        with OpenedPool(a.pid) as pool:
            (spoilt,) = [record for record in pool.ready() if record.key == keys[2]]
            pool.flip(spoilt, byte=77_777)
        grant = two.ask(keys, wait=LOOK)
        assert states(grant)[:3] == [KeyState.HIT, KeyState.HIT, KeyState.PEER_GONE]
        check_loads(two, keys[:2], grant.number)
        two.scheduler.release(grant)
        assert b.metric("peer_tries_failed_total", reason="corrupt") == 1
        wait_for(lambda: stored_and_there(two, keys), SECONDS, "what was computed is there", lambda: b.log)
        check_nothing_left(a, b)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_over_tls_workers_of_the_cluster_read_from_each_other_and_others_do_not(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")

    def worker(node: str) -> WorkerProcess:
        usual = {"cluster": "safe", "etcd": etcd.endpoint, "peer_listen": "127.0.0.1:0", "node_id": node}
        return WorkerProcess(**(usual | POOL | ours.link_settings(node)))

    with (
        LeaderProcess(etcd.endpoint, "leader-s", cluster="safe", **ours.link_settings("leader-s")) as leader,
        worker("a") as a,
        worker("b") as b,
        side_at(a) as one,
        side_at(b) as two,
    ):
        meets(b, 1)
        store(one, KEYS)
        known(leader, [key.hex() for key in KEYS], "a")
        check_loads(two.wait_attached(), KEYS)
        assert b.metric("peer_fetches_completed_total") == len(KEYS)
        entry = json.loads(etcd.ctl("get", "/blockyard/safe/workers/a", "--print-value-only"))
        host, _, port = entry["peer"].rpartition(":")
        for number, files in enumerate((theirs.issue("b"), ours.issue_expired("b")), 1):
            intrude(host, int(port), ours.ca, files)
            a.wait_metric("peer_links_refused_total", number, reason="tls")
        check_nothing_left(a, b)


def test_a_port_that_is_taken_ends_the_start_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with WorkerProcess(spawn_only=True, etcd="127.0.0.1:2379", peer_listen=listen) as worker:
            worker.spawn()
            assert worker.wait() == 2
            assert f"peer_listen = {listen}" in worker.log
            assert len(worker.log.splitlines()) == 1


def intrude(host: str, port: int, ca: Path, files: tuple[Path, Path]) -> None:
    """Connect with a certificate that does not count."""

    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), SECONDS) as plain,
        client_context(ca, *files).wrap_socket(plain) as secured,
    ):
        secured.recv(1)
