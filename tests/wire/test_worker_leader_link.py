"""What a worker takes from a leader and what it does not: fences, garbage, silence, and claims asked for again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blockyard.common.messages import cluster
from support.attach_client import Engine, key
from support.etcd_server import EtcdServer
from support.hand_leader import HandLeader, LeaderSide
from support.worker_process import WorkerProcess

AREA = 8192


@pytest.fixture
def leader(etcd: EtcdServer) -> Iterator[HandLeader]:
    with HandLeader(etcd) as made:
        yield made


@pytest.fixture
def worker(etcd: EtcdServer) -> Iterator[WorkerProcess]:
    with WorkerProcess(cluster="test", etcd=etcd.endpoint, lease_ttl="20s") as process:
        yield process


def stored(worker: WorkerProcess, *numbers: int) -> None:
    with Engine(worker.socket) as engine:
        engine.store({key(number): bytes(AREA) for number in numbers})
        worker.wait_metric("checksum_backlog", 0)


def snapshot(link: LeaderSide) -> dict[bytes, int]:
    """Tiers per key of the next snapshot."""
    begin = link.receive(cluster.SnapshotBegin)
    held: dict[bytes, int] = {}
    while len(held) < begin.keys:
        held |= {change.key: change.tiers for change in link.receive(cluster.SnapshotPart).changes}
    assert link.receive(cluster.SnapshotEnd).keys == len(held)
    return held


def test_the_hello_says_who_and_which(leader: HandLeader, worker: WorkerProcess) -> None:
    hello = leader.welcome().hello
    assert (hello.cluster, hello.node, hello.cluster_uid) == ("test", "test-node", leader.uid)
    assert hello.incarnation == worker.metric("incarnation")
    assert hello.next_seq == 1


def test_a_leader_of_version_1_is_told_what_is_held(leader: HandLeader, worker: WorkerProcess) -> None:
    link = leader.welcome(protocol=1)
    assert link.hello.protocol_min == 1 < link.hello.protocol_max
    stored(worker, 1)
    snapshot(link)
    link.send(cluster.Ack(link.receive(cluster.Delta).seq))
    worker.wait_metric("outbox_depth", 0)


def test_an_order_has_one_last_report_and_does_not_end_the_link(leader: HandLeader, worker: WorkerProcess) -> None:
    link = leader.welcome()
    link.send(cluster.Order(7, "drop", 5000, [key(1)]))
    report = link.receive(cluster.OrderReport)
    assert (report.job, report.outcome in ("done", "refused")) == (7, True)
    link.receive(cluster.Ping)


def test_claims_come_as_a_snapshot_then_as_deltas_and_again_when_asked(
    leader: HandLeader, worker: WorkerProcess
) -> None:
    stored(worker, 1, 2)
    link = leader.welcome()
    assert snapshot(link) == {key(1): cluster.TIER_HOST, key(2): cluster.TIER_HOST}
    stored(worker, 3)
    delta = link.receive(cluster.Delta)
    assert delta.seq == 1
    assert [(one.key, one.tiers, one.size) for one in delta.changes] == [(key(3), cluster.TIER_HOST, AREA)]
    link.send(cluster.Resync(1, "lost it"))
    assert link.receive(cluster.Delta) == delta
    link.send(cluster.Ack(1))
    worker.wait_metric("outbox_depth", 0)
    link.send(cluster.Resync(0, "lost it all"))
    assert set(snapshot(link)) == {key(1), key(2), key(3)}
    assert link.receive(cluster.WorkerStats).ready_slots == 3


def test_a_bucket_that_a_leader_asks_for_is_told_again(leader: HandLeader, worker: WorkerProcess) -> None:
    stored(worker, 4)
    link = leader.welcome()
    assert set(snapshot(link)) >= {key(4)}
    link.send(cluster.Repair(key(4)[:1]))
    told = link.receive(cluster.Replacement)
    assert (told.bucket, told.first, told.last) == (key(4)[0], 0, 255)
    assert key(4) in {change.key for change in told.changes}
    link.send(cluster.Ack(told.seq))
    worker.wait_metric("outbox_depth", 0)


def test_an_old_epoch_is_refused_after_a_newer_one(leader: HandLeader, worker: WorkerProcess) -> None:
    first = leader.welcome()
    worker.wait_metric("leader_link", 1, state="live")
    leader.hold()
    first.close()
    assert leader.welcome(epoch=leader.epoch - 1).ended()
    worker.wait_metric("leader_link", 1, state="refused")
    leader.welcome()
    worker.wait_metric("leader_link", 1, state="live")


def test_a_leader_of_another_cluster_is_refused(leader: HandLeader, worker: WorkerProcess) -> None:
    assert leader.welcome(uid=b"x" * 16).ended()
    worker.wait_metric("leader_link", 1, state="refused")
    assert "leader" in worker.ready()[1]


def test_a_refusal_is_told_with_its_reason(leader: HandLeader, worker: WorkerProcess) -> None:
    assert leader.refuse("version", "leader speaks 7 to 9").ended()
    worker.wait_metric("leader_link", 1, state="refused")
    assert "leader speaks 7 to 9" in worker.ready()[1]["leader"]


@pytest.mark.parametrize(("code", "level"), [("not-leader", "warning"), ("version", "error")])
def test_the_same_refusal_is_logged_once(leader: HandLeader, worker: WorkerProcess, code: str, level: str) -> None:
    for _ in range(3):
        assert leader.refuse(code, "a word of the leader").ended()
    worker.wait_metric("leader_link", 1, state="refused")
    (line,) = [line for line in worker.log.splitlines() if "leader link refused" in line]
    assert f" {level} " in line


def test_a_new_epoch_is_followed_at_once(leader: HandLeader, worker: WorkerProcess) -> None:
    first = leader.welcome()
    worker.wait_metric("leader_link", 1, state="live")
    leader.claim()
    assert first.ended()
    leader.welcome()
    worker.wait_metric("leader_link", 1, state="live")


def test_a_leader_that_falls_silent_is_left(leader: HandLeader, worker: WorkerProcess) -> None:
    link = leader.welcome()
    leader.hold()
    link.silent = True
    assert link.ended()
    assert leader.welcome().hello.node == "test-node"


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\4\0\0\0\xc1\xc1\xc1\xc1", b"HTTP/1.1 400 Bad Request\r\n\r\n"],
)
def test_garbage_from_a_leader_ends_the_link_only(leader: HandLeader, worker: WorkerProcess, data: bytes) -> None:
    link = leader.welcome()
    worker.wait_metric("leader_link", 1, state="live")
    leader.hold()
    link.send_raw(data)
    assert link.ended()
    assert worker.metric("frames_refused_total") == 1
    leader.welcome()
    worker.wait_metric("leader_link", 1, state="live")
    stored(worker, 9)
