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
def leader(etcd: EtcdServer) -> Iterator[LeaderProcess]:
    with LeaderProcess(etcd.endpoint, "a", match_max_keys=str(MAX_KEYS)) as process:
        process.wait_leads()
        yield process


def own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


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
        (f"/v1/match?keys={','.join([KEY] * 130)}", f"match_max_keys = {MAX_KEYS}"),
        (f"/v1/match?keys={','.join([KEY] * 300)}", "POST /v1/match"),
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


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_bug(leader: LeaderProcess) -> None:
    host, port = leader.http.rsplit(":", 1)
    before = leader.log().count("request failed")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /v1/match HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{}")
        leader.get("/healthz")
    leader.get("/healthz")
    assert leader.log().count("request failed") == before


def test_the_largest_query_allowed_is_answered(leader: LeaderProcess) -> None:
    status, answer = leader.get("/v1/match", json.dumps({"keys": [KEY] * MAX_KEYS}).encode())
    assert (status, answer["keys"], answer["workers"], answer["partial"]) == (200, MAX_KEYS, [], False)


def test_a_request_line_has_room_for_the_keys_that_a_match_may_name(etcd: EtcdServer) -> None:
    with LeaderProcess(etcd.endpoint, "roomy", cluster="roomy") as roomy:
        roomy.wait_leads()
        status, answer = roomy.get(f"/v1/match?keys={'%2C'.join([KEY] * 4096)}")
        assert (status, answer["keys"]) == (200, 4096)


def test_noise_leaves_no_traceback(leader: LeaderProcess) -> None:
    leader.get(f"/v1/match?keys={','.join([KEY] * 300)}")
    assert "Traceback" not in leader.log()


def test_invariants_can_be_asked_for(leader: LeaderProcess) -> None:
    assert leader.get("/debug/invariants") == (200, {"broken": None})


def test_debug_pages_answer_on_loopback_alone(etcd: EtcdServer) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    flags = {"http_listen": "0.0.0.0:0", "advertise": "127.0.0.1:0"}
    with LeaderProcess(etcd.endpoint, "open", cluster="open", **flags) as leader:
        port = leader.http.rsplit(":", 1)[1]
        leader.http = f"127.0.0.1:{port}"
        assert leader.get("/debug/invariants")[0] == 200
        leader.http = f"{address}:{port}"
        assert leader.get("/healthz")[0] == 200
        status, answer = leader.get("/debug/invariants")
        assert (status, "loopback" in answer["error"]) == (403, True)


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
    assert not answer or set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"error"}
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
