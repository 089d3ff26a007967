"""Peers and orders over real links and HTTP: what workers are told and asked, and what people may ask."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from blockyard.common.messages import cluster as wire
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.leader_world import DISK, change, key, snapshot
from support.raw_worker import RawWorker, register

KEY = "ab" * 32


@pytest.fixture(scope="module")
def leader(etcd: EtcdServer) -> Iterator[LeaderProcess]:
    with LeaderProcess(etcd.endpoint, "a", match_max_keys="16") as process:
        process.wait_leads()
        yield process


@pytest.fixture
def pair(etcd: EtcdServer, leader: LeaderProcess) -> Iterator[tuple[RawWorker, RawWorker]]:
    """Worker a holds 1 to 4 and b holds 4; both serve peers."""
    with RawWorker(leader.link) as a, RawWorker(leader.link) as b:
        for worker, node, numbers in ((a, "a", (1, 2, 3, 4)), (b, "b", (4,))):
            welcome = worker.greet(node, register(etcd, node, peer=f"{node}:7503"))
            assert isinstance(welcome, wire.LinkWelcome)
            assert welcome.protocol == wire.PROTOCOL_MAX
            worker.send(*snapshot(0, *map(change, numbers)))
        wait_for(lambda: not leader.get("/v1/workers")[1]["partial"], 10, "claims are in")
        yield a, b
        for node in "ab":
            etcd.ctl("del", f"/blockyard/test/workers/{node}")
    wait_for(lambda: not leader.get("/v1/workers")[1]["workers"], 10, "both are gone")


def worker(leader: LeaderProcess, node: str) -> dict[str, object]:
    return next(one for one in leader.get("/v1/workers")[1]["workers"] if one["node"] == node)


def awaited(worker: RawWorker, kind: str) -> wire.Order:
    """The next order of this kind; a purge of another test may still be under way."""
    while (order := worker.await_kind(wire.Order)).kind != kind:
        pass
    return order


def orders(leader: LeaderProcess, cause: str) -> list[dict[str, object]]:
    return list(leader.get(f"/v1/orders?cause={urllib.request.quote(cause)}")[1]["orders"])  # type: ignore[attr-defined]


def test_peers_are_told_and_keys_located(pair: tuple[RawWorker, RawWorker]) -> None:
    a, b = pair
    assert [(peer.node, peer.address) for peer in a.await_kind(wire.Peers).peers] == [("b", "b:7503")]
    b.send(wire.Locate(5, [key(number) for number in (1, 2, 3, 4)]))
    located = b.await_kind(wire.Located)
    assert (located.number, located.whole) == (5, True)
    assert located.spans == [wire.Span(0, 4, "a", wire.TIER_HOST)]


def test_a_prefetch_is_ordered_reported_and_told_again_after_a_lost_link(
    etcd: EtcdServer, leader: LeaderProcess, pair: tuple[RawWorker, RawWorker]
) -> None:
    status, answer = leader.order("/v1/prefetch", {"worker": "b", "keys": [key(1).hex(), KEY]})
    assert (status, answer["copy"], answer["missing"]) == (202, 1, 1)
    first = awaited(pair[1], "copy")
    assert (first.kind, first.node, first.keys) == ("copy", "a", [key(1)])
    with RawWorker(leader.link) as again:
        again.greet("b", register(etcd, "b", peer="b:7503", again=1))
        again.send(*snapshot(0, change(4)))
        second = awaited(again, "copy")
        assert (second.job, second.keys) == (first.job, first.keys)
        assert second.deadline_ms <= first.deadline_ms
        again.send(wire.OrderReport(second.job, "done", 1))
        wait_for(lambda: orders(leader, answer["cause"])[0]["state"] == "done", 10, "the report is in")
    (order,) = orders(leader, answer["cause"])
    assert (order["worker"], order["from"], order["count"], order["keys"]) == ("b", "a", 1, 1)


def test_a_purge_hides_what_late_deltas_say(leader: LeaderProcess, pair: tuple[RawWorker, RawWorker]) -> None:
    a, b = pair
    status, answer = leader.order("/v1/purge", {"keys": [key(4).hex()], "deadline_s": 4})
    assert (status, answer["keys"], answer["workers"]) == (202, 1, 2)
    order = awaited(a, "purge")
    assert (order.kind, order.keys) == ("purge", [key(4)])
    b.send(wire.Delta(1, [], [change(4, DISK)]))
    b.await_kind(wire.Ack)
    assert leader.get(f"/v1/where?key={key(4).hex()}")[1]["holders"] == []
    a.send(wire.OrderReport(order.job, "refused", 0, 1, "busy"))
    assert {one["worker"] for one in orders(leader, answer["cause"])} == {"a", "b"}


def test_a_drain_copies_what_no_other_has_and_is_seen(leader: LeaderProcess, pair: tuple[RawWorker, RawWorker]) -> None:
    a, b = pair
    assert leader.order("/v1/drain", {"worker": "a"})[0] == 202
    a.send(wire.OrderReport(awaited(a, "drain").job, "progress", 0, 3))
    found = leader.get(f"/v1/match?keys={key(4).hex()}")[1]["workers"]
    assert all(one["draining"] == (one["node"] == "a") for one in found)
    copy = awaited(b, "copy")
    assert (copy.kind, copy.node, set(copy.keys)) == ("copy", "a", {key(1), key(2), key(3)})
    b.send(wire.Delta(1, [], [change(number) for number in (1, 2, 3)]), wire.OrderReport(copy.job, "done", 3))
    wait_for(lambda: worker(leader, "a")["drain"]["state"] == "done", 15, "it is drained")  # type: ignore[index]
    shown = worker(leader, "a")["drain"]
    assert isinstance(shown, dict)
    assert (shown["left"], shown["copied"], shown["in_flight"]) == (0, 3, 0)
    assert worker(leader, "b")["drain"] is None
    assert leader.order("/v1/drain?worker=a", method="DELETE")[0] == 202
    awaited(a, "undrain")
    assert worker(leader, "a")["drain"] is None


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/prefetch", None, "worker"),
        ("/v1/prefetch", {"worker": "a"}, "keys"),
        ("/v1/prefetch", {"worker": "a", "keys": []}, "at least one key"),
        ("/v1/prefetch", {"worker": "a", "keys": ["zz"]}, "'zz'"),
        ("/v1/prefetch", {"worker": "a", "keys": [KEY] * 17}, "match_max_keys = 16"),
        ("/v1/prefetch", {"worker": "a", "keys": [KEY], "deadline_s": 0}, "0.1 to 86400"),
        ("/v1/purge", {}, "exactly one"),
        ("/v1/purge", {"model": "m", "fingerprint": KEY}, "exactly one"),
        ("/v1/purge", {"fingerprint": "abc"}, "fingerprint 'abc': must be 64 hex digits, and has 3"),
        ("/v1/purge", {"keys": [KEY], "deadline_s": 1e9}, "0.1 to 86400"),
        ("/v1/drain", {"node": "a"}, "worker"),
        ("/v1/drain", {"worker": 5}, "worker"),
    ],
)
def test_a_bad_order_is_a_400_that_says_what_is_right(
    leader: LeaderProcess, path: str, body: object, words: str
) -> None:
    status, answer = leader.order(path, body)
    assert (status, words in answer["error"]) == (400, True), answer
    assert "\n" not in answer["error"]


def test_who_is_not_there_is_a_404_and_a_form_is_not_taken(leader: LeaderProcess) -> None:
    for path, body in (
        ("/v1/drain", {"worker": "x"}),
        ("/v1/prefetch", {"worker": "x", "keys": [KEY]}),
        ("/v1/purge", {"model": "x"}),
    ):
        status, answer = leader.order(path, body)
        assert (status, "'x'" in answer["error"]) == (404, True), answer
    status, answer = leader.get("/v1/drain", b'{"worker": "a"}')
    assert (status, "application/json" in answer["error"]) == (400, True)
    assert leader.order("/v1/drain", method="DELETE")[0] == 400


def test_a_worker_of_version_1_is_linked_and_given_nothing(etcd: EtcdServer, leader: LeaderProcess) -> None:
    with RawWorker(leader.link) as old:
        welcome = old.greet("old", register(etcd, "old", peer="old:1"), protocol_max=1)
        assert isinstance(welcome, wire.LinkWelcome)
        assert welcome.protocol == 1
        old.send(*snapshot(0, change(1)))
        status, answer = leader.order("/v1/drain", {"worker": "old"})
        assert (status, "takes no orders" in answer["error"]) == (409, True)
        old.send(wire.Ping(3))
        assert old.receive() == wire.Pong(3)
    etcd.ctl("del", "/blockyard/test/workers/old")
