"""`blockyard drain`, `purge` and `prefetch` against a real leader whose workers the test plays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from blockyard.common.messages import cluster as wire
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.leader_world import DISK, change, key, snapshot
from support.raw_worker import RawWorker, register


@pytest.fixture(scope="module")
def leader(etcd: EtcdServer) -> Iterator[LeaderProcess]:
    with LeaderProcess(etcd.endpoint, "a") as process:
        process.wait_leads()
        yield process


@pytest.fixture
def a(etcd: EtcdServer, leader: LeaderProcess) -> Iterator[RawWorker]:
    """Worker a has 1 in memory and 2 on disk, and serves peers."""
    with RawWorker(leader.link) as worker:
        worker.greet("a", register(etcd, "a", peer="a:7503"))
        worker.send(*snapshot(0, change(1), change(2, DISK)))
        wait_for(lambda: not leader.get("/v1/workers")[1]["partial"], 10, "claims are in")
        yield worker
        etcd.ctl("del", "/blockyard/test/workers/a")
    wait_for(lambda: not leader.get("/v1/workers")[1]["workers"], 10, "it is gone")


class Command:
    """A command under way."""

    def __init__(self, leader: LeaderProcess, *words: str) -> None:
        told = () if "--leader" in words else ("--leader", leader.http)
        arguments = [sys.executable, "-m", "blockyard.cli.main", *words, *told]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(self) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        out, err = self._process.communicate(timeout=60)
        return self._process.returncode, out, err

    def told(self) -> tuple[int, dict[str, Any]]:
        """Exit code and the JSON of the output."""
        code, out, err = self.ended()
        assert err == ""
        return code, json.loads(out)


def awaited(worker: RawWorker, kind: str) -> wire.Order:
    while (order := worker.await_kind(wire.Order)).kind != kind:
        pass
    return order


def test_a_prefetch_waits_for_its_orders(leader: LeaderProcess, a: RawWorker) -> None:
    command = Command(leader, "prefetch", "a", "--key", key(1).hex(), "--key", key(2).hex(), "--json")
    order = awaited(a, "promote")
    a.send(wire.OrderReport(order.job, "done", 1))
    code, told = command.told()
    assert (code, told["ready"], told["promote"], told["complete"]) == (0, 1, 1, True)
    assert [(one["state"], one["count"]) for one in told["orders"]] == [("done", 1)]


def test_what_cannot_be_had_ends_with_3(leader: LeaderProcess, a: RawWorker) -> None:
    code, out, err = Command(leader, "prefetch", "a", "--key", key(9).hex()).ended()
    assert (code, err) == (3, "")
    assert "1 missing" in out


def test_a_purge_tells_what_became_of_it_at_each_worker(leader: LeaderProcess, a: RawWorker) -> None:
    command = Command(leader, "purge", "--model", "a-model", "--deadline", "5")
    order = awaited(a, "purge")
    a.send(wire.OrderReport(order.job, "refused", 0, 2, "busy-disk"))
    code, out, err = command.ended()
    assert (code, err) == (3, "")
    assert "refused" in out
    assert "busy-disk" in out


def test_a_drain_ends_when_nothing_is_left(etcd: EtcdServer, leader: LeaderProcess, a: RawWorker) -> None:
    with RawWorker(leader.link) as b:
        b.greet("b", register(etcd, "b", peer="b:7503"))
        b.send(*snapshot(0, change(7)))
        command = Command(leader, "drain", "a", "--json")
        a.send(wire.OrderReport(awaited(a, "drain").job, "progress", 0, 2))
        copy = awaited(b, "copy")
        b.send(wire.Delta(1, [], [change(1), change(2)]), wire.OrderReport(copy.job, "done", 2))
        code, told = command.told()
        assert (code, told["state"], told["copied"], told["left"]) == (0, "done", 2, 0)
        code, out, _ = Command(leader, "drain", "a", "--undo").ended()
        assert (code, out) == (0, "a is drained no more\n")
        awaited(a, "undrain")
    etcd.ctl("del", "/blockyard/test/workers/b")


def test_a_drain_to_which_nobody_is_of_help_says_so_at_once(leader: LeaderProcess, a: RawWorker) -> None:
    code, out, err = Command(leader, "drain", "a").ended()
    assert (code, err) == (3, "")
    assert "a is not drained: no other worker serves" in out
    assert "2 chunks" in out
    Command(leader, "drain", "a", "--undo").ended()


def test_a_drain_that_is_watched_goes_on_with_the_next_leader(etcd: EtcdServer) -> None:
    first, second = (LeaderProcess(etcd.endpoint, name, cluster="two") for name in "ab")
    with first, second:
        first.wait_leads()
        incarnation = register(etcd, "w", cluster="two", peer="w:1")
        with RawWorker(first.link) as worker:
            worker.greet("w", incarnation, cluster="two")
            worker.send(*snapshot(0, change(1)))
            words = ["drain", "w", "--json", "--leader", f"{first.http},{second.http}"]
            command = Command(first, *words)
            awaited(worker, "drain")
            first.kill()
        second.wait_leads()
        with RawWorker(second.link) as worker:
            worker.greet("w", incarnation, cluster="two")
            worker.send(*snapshot(0))
            worker.send(wire.OrderReport(awaited(worker, "drain").job, "done"))
            assert command.told()[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["drain", "x"], 1, "worker 'x' is not registered"),
        (["drain", "x y", "--undo"], 1, "worker 'x y' is not registered"),
        (["drain", "x", "--undo"], 1, "worker 'x' is not registered"),
        (["purge", "--model", "x"], 1, "model 'x': no worker serves it"),
        (["purge"], 2, "exactly one of --fingerprint, --model and keys"),
        (["purge", "--fingerprint", "ab"], 2, "--fingerprint 'ab': must be 64 hex digits, and has 2"),
        (["prefetch", "x"], 2, "at least one key"),
        (["prefetch", "x", "--keys", "/nowhere"], 2, "--keys /nowhere: No such file"),
    ],
)
def test_what_cannot_be_meant_is_one_line(leader: LeaderProcess, words: list[str], code: int, line: str) -> None:
    ended, out, err = Command(leader, *words).ended()
    assert (ended, out) == (code, "")
    assert line in err
    assert err.count("\n") == 1
