"""How many questions a second a leader answers: workers' Locate over their links beside `POST /v1/match` over HTTP.

A real leader and a real etcd. WORKERS hold a prompt of 500 chunks, each a part of it of another length; one more asks,
64 and 500 keys at a time, with so many questions under way at once. What is counted is whole: encoding, sockets and
decoding on both sides; asker and leader are two processes. Seconds and questions, as JSON.

    PYTHONPATH=tests .venv/bin/python benchmarks/leader_questions.py [--workers 64] [--seconds 5]
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from blockyard.common.codec import encode
from blockyard.common.messages import cluster as wire
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.leader_world import change, key, snapshot
from support.raw_worker import RawWorker, register

KEYS = 500
AT_ONCE = 8


def located(asker: RawWorker, count: int, seconds: float) -> dict[str, Any]:
    """Questions of so many keys over the link, AT_ONCE under way."""
    frame = encode(wire.Locate(1, [key(number) for number in range(count)]), wire.MAX_FRAME)
    asker.send_bytes(frame * AT_ONCE)
    begun, answers, spans = time.monotonic(), 0, 0
    while time.monotonic() - begun < seconds:
        spans = len(asker.await_kind(wire.Located).spans)
        answers += 1
        asker.send_bytes(frame)
    taken = time.monotonic() - begun
    for _ in range(AT_ONCE):
        asker.await_kind(wire.Located)
    return _rate(answers, taken, count) | {"spans": spans}


def matched(address: str, count: int, seconds: float) -> dict[str, Any]:
    """The same keys over one open HTTP connection, one question after the other."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    body = json.dumps({"keys": [key(number).hex() for number in range(count)]})
    begun, answers = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        connection.request("POST", "/v1/match", body)
        connection.getresponse().read()
        answers += 1
    taken = time.monotonic() - begun
    connection.close()
    return _rate(answers, taken, count)


def one_by_one(asker: RawWorker, count: int, seconds: float) -> dict[str, Any]:
    """Questions over the link, each after the answer to the one before: the time that a worker waits."""
    frame = encode(wire.Locate(1, [key(number) for number in range(count)]), wire.MAX_FRAME)
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.perf_counter()
        asker.send_bytes(frame)
        asker.await_kind(wire.Located)
        times.append(time.perf_counter() - begun)
    times.sort()
    return {
        "median_us": round(1e6 * times[len(times) // 2]),
        "p99_us": round(1e6 * times[len(times) * 99 // 100]),
        "asked": len(times),
    }


def measure(workers: int, seconds: float) -> dict[str, Any]:
    """All of it."""
    with EtcdServer() as etcd, LeaderProcess(etcd.endpoint, "leader", ttl="30s") as leader:
        leader.wait_leads()
        links = []
        for number in range(workers):
            links.append(_worker(etcd, leader, f"w{number}", (number + 1) * KEYS // workers))
        asker = _worker(etcd, leader, "asker", 0)
        wait_for(lambda: not leader.get("/v1/workers")[1]["partial"], 30, "claims are in")
        asks: list[tuple[str, Callable[[int], dict[str, Any]]]] = [
            ("locate", lambda count: located(asker, count, seconds)),
            ("locate_one_by_one", lambda count: one_by_one(asker, count, seconds)),
            ("match_http", lambda count: matched(leader.http, count, seconds)),
        ]
        found: dict[str, Any] = {"workers": workers}
        for count in (64, KEYS):
            for name, ask in asks:
                for link in [*links, asker]:
                    link.send(wire.Ping(1))
                found[f"{name}_{count}"] = ask(count)
        for link in [*links, asker]:
            link.socket.close()
        return found


def _worker(etcd: EtcdServer, leader: LeaderProcess, node: str, held: int) -> RawWorker:
    worker = RawWorker(leader.link)
    worker.greet(node, register(etcd, node, peer=f"{node}:7503"))
    worker.send(*snapshot(0, *map(change, range(held)), part=wire.MAX_CHANGES))
    return worker


def _rate(answers: int, seconds: float, count: int) -> dict[str, Any]:
    return {"per_s": round(answers / seconds), "keys_per_s": round(answers * count / seconds)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    options = parser.parse_args()
    print(json.dumps(measure(options.workers, options.seconds)))


if __name__ == "__main__":
    main()
