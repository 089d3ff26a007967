"""Raw worker links against a real leader: what is claimed on them is what HTTP shows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from blockyard.common.link import LinkClosed
from blockyard.common.messages import cluster as wire
from blockyard.leader.worker_links import LOOK
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.leader_world import DISK, HOST, WORLD, change, delta, digests, key, snapshot
from support.raw_worker import RawWorker, register, unregister


@pytest.fixture(scope="module")
def leader(etcd: EtcdServer) -> Iterator[LeaderProcess]:
    with LeaderProcess(etcd.endpoint, "a") as process:
        process.wait_leads()
        yield process


def holders(leader: LeaderProcess, number: int) -> dict[str, list[str]]:
    status, answer = leader.get(f"/v1/where?key={key(number).hex()}")
    assert status == 200, answer
    return {holder["node"]: holder["tiers"] for holder in answer["holders"]}


def match(leader: LeaderProcess, *numbers: int) -> list[tuple[str, int, int, int]]:
    query = ",".join(key(number).hex() for number in numbers)
    answer = leader.get(f"/v1/match?keys={query}")[1]
    body = ('{"keys": ["' + query.replace(",", '", "') + '"]}').encode()
    assert leader.get("/v1/match", body)[1]["workers"] == answer["workers"]
    return [
        (found["node"], found["length"], found["tiers"]["host"], found["tiers"]["disk"]) for found in answer["workers"]
    ]


@pytest.mark.parametrize(
    "words",
    [b"\x01\0\0\0\xc1" + b"\xff" * 4, b"\x01\0\0\0\xc1" + bytes(4), b"\xff" * 8, b"\x01\0\0\0\xc1" * 3],
)
def test_two_wrong_frames_at_once_as_first_words_are_refused_once(leader: LeaderProcess, words: bytes) -> None:
    """The second one finds a link that is being closed."""
    with RawWorker(leader.link) as stranger:
        stranger.send_bytes(words)
        answer = stranger.receive()
        assert isinstance(answer, wire.LinkRefused) and answer.code == "hello"
        with pytest.raises(LinkClosed):
            stranger.receive()
    time.sleep(3 * LOOK)  # a bug met by a link ends the leader at its next look
    assert leader.alive
    assert leader.leads()


def test_a_hello_in_the_form_of_a_later_version_is_refused_for_its_version(leader: LeaderProcess) -> None:
    payload = msgspec.msgpack.encode(["worker_hello", 90, 91, "9.9", {"all": "else"}])
    with RawWorker(leader.link) as later:
        later.send_bytes(len(payload).to_bytes(4, "little") + payload)
        answer = later.receive()
    assert isinstance(answer, wire.LinkRefused)
    assert answer.code == "version"
    assert answer.detail.startswith("worker 9.9 speaks protocol 90 to 91, this leader speaks ")


def test_claims_are_what_where_and_match_show(etcd: EtcdServer, leader: LeaderProcess) -> None:
    first, second = register(etcd, "n1"), register(etcd, "n2")
    with RawWorker(leader.link) as one, RawWorker(leader.link) as two:
        welcome = one.greet("n1", first)
        assert isinstance(welcome, wire.LinkWelcome)
        assert welcome.expect_seq == 0
        assert leader.get("/v1/workers")[1]["partial"]
        two.greet("n2", second)
        one.send(*snapshot(0, change(1, HOST), change(2, HOST)))
        two.send(*snapshot(0, change(1, HOST)))
        one.hold(change(3, DISK))
        two.hold(change(3, HOST))
        assert holders(leader, 1) == {"n1": ["host"], "n2": ["host"]}
        assert holders(leader, 3) == {"n1": ["disk"], "n2": ["host"]}
        assert match(leader, 1, 2, 3, 4) == [("n1", 3, 2, 0), ("n2", 1, 1, 0)]

        one.hold(change(1, 0))
        assert holders(leader, 1) == {"n2": ["host"]}
        assert match(leader, 1, 2, 3) == [("n2", 1, 1, 0)]

        one.send(wire.WorkerStats(8192, 4096, 2, 0, 0, [("e", "m", "live")]), wire.Ping(4))
        assert one.await_kind(wire.Pong).number == 4
        answer = leader.get("/v1/workers")[1]
        assert not answer["partial"]
        shown = {worker["node"]: worker for worker in answer["workers"]}
        assert shown["n1"]["state"] == shown["n2"]["state"] == "live"
        assert (shown["n1"]["keys"], shown["n1"]["used_bytes"], shown["n1"]["incarnation"]) == (2, 4096, first)

        assert shown["n1"]["engines"] == [{"engine": "e", "model": "m", "state": "live"}]

    def stale() -> bool:
        return {worker["state"] for worker in leader.get("/v1/workers")[1]["workers"]} == {"lost"}

    wait_for(stale, 20, "both links are lost")
    shown = {worker["node"]: worker for worker in leader.get("/v1/workers")[1]["workers"]}
    assert shown["n1"]["engines"] == [{"engine": "e", "model": "m", "state": "unknown"}]
    assert holders(leader, 3) == {"n1": ["disk"], "n2": ["host"]}
    unregister(etcd, "n1")
    wait_for(lambda: holders(leader, 3) == {"n2": ["host"]}, 20, "the claims of n1 end")
    unregister(etcd, "n2")
    wait_for(lambda: holders(leader, 3) == {}, 20, "the claims of n2 end")


def test_a_gap_is_asked_for_over_the_wire(etcd: EtcdServer, leader: LeaderProcess) -> None:
    incarnation = register(etcd, "gap")
    with RawWorker(leader.link) as worker:
        worker.greet("gap", incarnation)
        worker.send(*snapshot(0), delta(2, change(11)))
        assert worker.await_kind(wire.Resync).from_seq == 1
        worker.send(delta(1, change(10)), delta(2, change(11)))
        # Two deltas may be acknowledged one by one or together.
        while worker.await_kind(wire.Ack).seq < 2:
            pass
        assert holders(leader, 10) == holders(leader, 11) == {"gap": ["host"]}
    unregister(etcd, "gap")


def test_a_bucket_that_differs_is_asked_for_and_replaced(etcd: EtcdServer, leader: LeaderProcess) -> None:
    incarnation = register(etcd, "drift")
    with RawWorker(leader.link) as worker:
        worker.greet("drift", incarnation)
        worker.send(*snapshot(0, change(12)), digests(0, change(12), change(13)))
        bucket = key(13)[0]
        assert worker.await_kind(wire.Repair).buckets == bytes([bucket])
        assert leader.get("/v1/workers")[1]["partial"]
        worker.send(wire.Replacement(1, [WORLD], [change(13)], bucket, 0, 255))
        assert worker.await_kind(wire.Ack).seq == 1
        assert holders(leader, 12) == holders(leader, 13) == {"drift": ["host"]}
    unregister(etcd, "drift")


def test_a_snapshot_comes_in_by_credit(etcd: EtcdServer, leader: LeaderProcess) -> None:
    incarnation = register(etcd, "paced")
    begin, *parts, end = snapshot(0, *(change(number) for number in range(30, 50)), part=1)
    with RawWorker(leader.link) as worker:
        worker.greet("paced", incarnation)
        worker.send(wire.SnapshotOffer(0, len(parts)))
        credit = worker.await_kind(wire.SnapshotCredit)
        worker.send(begin)
        for number, part in enumerate(parts, 1):
            while credit.parts < number:
                credit = worker.await_kind(wire.SnapshotCredit)
            worker.send(part)
        worker.send(end)
        wait_for(lambda: holders(leader, 49) == {"paced": ["host"]}, 20, "the snapshot is in")
    unregister(etcd, "paced")


def test_a_registration_made_anew_ends_the_old_link(etcd: EtcdServer, leader: LeaderProcess) -> None:
    old = register(etcd, "twice")
    with RawWorker(leader.link) as worker, RawWorker(leader.link) as late, RawWorker(leader.link) as fresh:
        worker.greet("twice", old)
        worker.send(*snapshot(0, change(20)))
        worker.hold(change(21))
        unregister(etcd, "twice")
        new = register(etcd, "twice")
        with pytest.raises(LinkClosed):
            worker.receive()
        assert isinstance(fresh.greet("twice", new), wire.LinkWelcome)
        refused = late.greet("twice", old)
        assert isinstance(refused, wire.LinkRefused)
        assert refused.code == "incarnation"
        assert holders(leader, 20) == {}
    unregister(etcd, "twice")


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"protocol_min": 8, "protocol_max": 9}, "version", "8 to 9"),
        ({"cluster": "other"}, "cluster", "'other'"),
        ({"cluster_uid": b"x" * 16}, "uid", (b"x" * 16).hex()),
    ],
)
def test_a_hello_that_does_not_fit_is_told_why(
    leader: LeaderProcess, fields: dict[str, object], code: str, words: str
) -> None:
    with RawWorker(leader.link) as worker:
        refused = worker.greet("misfit", 1, **fields)
        assert isinstance(refused, wire.LinkRefused)
        assert refused.code == code
        assert words in refused.detail
        with pytest.raises(LinkClosed):
            worker.receive()


def refused_frames(leader: LeaderProcess) -> float:
    lines = leader.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("blockyard_leader_frames_refused_total{"))


def test_malformed_frames_are_counted_and_do_not_end_the_link(etcd: EtcdServer, leader: LeaderProcess) -> None:
    before = refused_frames(leader)
    with RawWorker(leader.link) as worker:
        worker.greet("rough", register(etcd, "rough"))
        worker.send(*snapshot(0))
        worker.send_bytes((3).to_bytes(4, "little") + b"\xc1\xc1\xc1")
        worker.send_bytes((1).to_bytes(4, "little") + b"\x05")
        worker.hold(change(30))
        assert holders(leader, 30) == {"rough": ["host"]}
        assert refused_frames(leader) == before + 2
        # A length out of range leaves the stream out of step.
        worker.send_bytes((1 << 31).to_bytes(4, "little"))
        with pytest.raises(LinkClosed):
            while True:
                worker.receive()
    unregister(etcd, "rough")


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b"\x02\0\0\0\x91\xa4"])
def test_whoever_does_not_say_hello_is_turned_away(leader: LeaderProcess, noise: bytes) -> None:
    before = refused_frames(leader)
    with RawWorker(leader.link) as worker:
        worker.send_bytes(noise)
        refused = worker.receive()
        assert isinstance(refused, wire.LinkRefused)
        assert refused.code == "hello"
    assert refused_frames(leader) == before + 1
    assert 'metric_updates_refused_total{cluster="test",leader="a"} 0.0' in leader.get("/metrics")[1]


def degraded(leader: LeaderProcess) -> list[str]:
    return [item["what"] for item in leader.get("/readyz")[1]["degraded"]]


def test_a_leader_killed_and_restarted_learns_again_what_workers_hold() -> None:
    with EtcdServer() as etcd, LeaderProcess(etcd.endpoint, "a") as leader:
        leader.wait_leads()
        incarnation = register(etcd, "n1")
        with RawWorker(leader.link) as worker:
            worker.greet("n1", incarnation)
            worker.send(*snapshot(0, change(1)))
            worker.hold(change(2))
            leader.kill()
            with pytest.raises(LinkClosed):
                worker.receive()
        leader.start()
        leader.wait_leads()
        wait_for(lambda: leader.get("/v1/workers")[1]["workers"], 20, "the registration is known")
        answer = leader.get(f"/v1/where?key={key(1).hex()}")[1]
        assert (answer["partial"], answer["holders"]) == (True, [])
        assert degraded(leader) == ["worker-lost"]
        with RawWorker(leader.link) as worker:
            welcome = worker.greet("n1", incarnation, next_seq=2)
            assert isinstance(welcome, wire.LinkWelcome)
            assert welcome.expect_seq == 0
            worker.send(*snapshot(1, change(1), change(2)))
            assert worker.await_kind(wire.Ack).seq == 1
            assert holders(leader, 1) == holders(leader, 2) == {"n1": ["host"]}
            assert not leader.get("/v1/workers")[1]["partial"]


def test_claims_outlive_a_restart_of_etcd() -> None:
    with EtcdServer() as etcd, LeaderProcess(etcd.endpoint, "a") as leader:
        leader.wait_leads()
        incarnation = register(etcd, "n1")
        with RawWorker(leader.link) as worker:
            worker.greet("n1", incarnation)
            worker.send(*snapshot(0, change(1)))
            worker.hold(change(2))
            etcd.kill()
            wait_for(lambda: not leader.leads(), 30, "the lease margin is spent", leader.log)
            etcd.start()
            leader.wait_leads(30)
        with RawWorker(leader.link) as worker:
            welcome = worker.greet("n1", incarnation, next_seq=2)
            assert isinstance(welcome, wire.LinkWelcome)
            assert welcome.expect_seq == 2
            assert holders(leader, 1) == holders(leader, 2) == {"n1": ["host"]}
