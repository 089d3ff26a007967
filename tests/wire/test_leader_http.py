"""The leader's HTTP face: bad input gets the right status and one clear line of JSON, and is counted."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess

KEY = "ab" * 32
MAX_KEYS = 16


@pytest.fixture(scope="module")
def leader() -> Iterator[LeaderProcess]:
    with EtcdServer() as etcd, LeaderProcess(etcd.endpoint, "a", match_max_keys=str(MAX_KEYS)) as process:
        process.wait_leads()
        yield process


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/where", "key"),
        ("/v1/where?key=", "64 hex digits"),
        ("/v1/where?key=zz", "'zz'"),
        (f"/v1/where?key={KEY}00", "66 characters"),
        (f"/v1/where?key={'ab%20' * 21}a", "64 hex digits"),
        ("/v1/match", "keys"),
        (f"/v1/match?keys={KEY},", "64 hex digits"),
        (f"/v1/match?keys={','.join([KEY] * (MAX_KEYS + 1))}", f"match_max_keys = {MAX_KEYS}"),
    ],
)
def test_a_bad_query_is_a_400_that_says_what_is_right(leader: LeaderProcess, path: str, words: str) -> None:
    status, answer = leader.get(path)
    assert status == 400
    assert words in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"keys": []}',
        b'{"keys": "ab"}',
        b'{"keys": [1]}',
        b'{"keys": ["ab"], "more": 1}',
        b'{"keys": [null]}',
        b"\xff\xfe",
        json.dumps({"keys": [KEY] * (MAX_KEYS + 1)}).encode(),
        b"[" * 4000,
    ],
)
def test_a_bad_body_is_a_400(leader: LeaderProcess, body: bytes) -> None:
    status, answer = leader.get("/v1/match", body)
    assert status == 400
    assert "keys" in answer["error"]
    assert "\n" not in answer["error"]


def test_a_body_beyond_the_limit_is_a_413(leader: LeaderProcess) -> None:
    status, answer = leader.get("/v1/match", b" " * (1 << 20))
    assert status == 413
    assert f"{MAX_KEYS} keys" in answer["error"]


def test_the_largest_query_allowed_is_answered(leader: LeaderProcess) -> None:
    status, answer = leader.get("/v1/match", json.dumps({"keys": [KEY] * MAX_KEYS}).encode())
    assert (status, answer["keys"], answer["workers"], answer["partial"]) == (200, MAX_KEYS, [], False)


def test_unknown_paths_and_methods(leader: LeaderProcess) -> None:
    status, answer = leader.get("/v2/else")
    assert (status, answer) == (404, {"error": "GET /v2/else: Not Found"})
    status, answer = leader.get("/v1/where", b"{}")
    assert status == 405
    assert "POST /v1/where" in answer["error"]


@pytest.mark.parametrize("noise", [b"\0\1\2\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000])
def test_noise_instead_of_http_ends_that_connection_alone(leader: LeaderProcess, noise: bytes) -> None:
    host, port = leader.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
    assert not answer or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert leader.get("/healthz")[0] == 200


def test_requests_are_counted_by_route_and_class(leader: LeaderProcess) -> None:
    def counted() -> dict[tuple[str, str], float]:
        return {
            (sample.labels["route"], sample.labels["code"]): sample.value
            for family in text_string_to_metric_families(leader.get("/metrics")[1])
            for sample in family.samples
            if sample.name == "blockyard_leader_http_requests_total"
        }

    before = counted()
    leader.get(f"/v1/where?key={KEY}")
    leader.get("/v1/where")
    leader.get("/v2/else")
    after = counted()
    moved = {series: after[series] - before[series] for series in after if after[series] != before[series]}
    assert moved == {
        ("/v1/where", "2xx"): 1,
        ("/v1/where", "4xx"): 1,
        ("other", "4xx"): 1,
        ("/metrics", "2xx"): 1,
    }


def test_metrics_show_the_state_of_the_leader(leader: LeaderProcess) -> None:
    families = text_string_to_metric_families(leader.get("/metrics")[1])
    samples = [sample for family in families for sample in family.samples]
    assert all(sample.labels["cluster"] == "test" and sample.labels["leader"] == "a" for sample in samples)
    values = {sample.name: sample.value for sample in samples}
    assert values["blockyard_leader_is_leader"] == values["blockyard_leader_etcd_healthy"] == 1
    assert values["blockyard_leader_epoch"] > 0
    assert values["blockyard_leader_metric_updates_refused_total"] == 0
