"""The worker's endpoints: every number equals what was done, and what is degraded is told."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta

import pytest

from blockyard.common.messages import attach
from support.attach_client import Engine, hello, key
from support.worker_process import WorkerProcess

AREA = 8192
TOKENS = 256


def test_the_numbers_of_a_scripted_run_are_the_truth() -> None:
    chunks = {key(number): bytes([number]) * AREA for number in range(6)}
    with WorkerProcess() as worker, Engine(worker.socket) as engine:
        engine.store(chunks)
        engine.store({key(0): b"z" * AREA, key(6): b"z" * AREA})
        grant = engine.acquire([*chunks, key(100), key(101)])
        engine.load(grant, list(chunks)[:4])
        engine.scheduler.send(attach.Release(grant.grant, key(5)))
        assert engine.acquire([key(200)]).grant == 0
        engine.settle()
        worker.wait_metric("checksum_backlog", 0)
        expected = {
            "acquire_requests_total": 2,
            "acquire_keys_total": 9,
            "acquire_tokens_total": 9 * TOKENS,
            "hit_chunks_total": 6,
            "hit_tokens_total": 6 * TOKENS,
            "miss_chunks_total": 3,
            "miss_tokens_total": 3 * TOKENS,
            "fills_started_total": 7,
            "fills_committed_total": 7,
            "fills_duplicate_total": 1,
            "fills_in_flight": 0,
            "loads_resolved_total": 4,
            "loads_completed_total": 4,
            "loads_in_flight": 0,
            "pins": 5,
            "evictions_total": 0,
            "sessions": 2,
            "pool_bytes": 16 << 20,
            "frames_refused_total": 0,
            "metric_updates_refused_total": 0,
        }
        assert {name: worker.metric(name) for name in expected} == expected
        assert worker.metric("slots", state="ready") == 7
        assert worker.metric("slots") == worker.metric("pool_slots")
        assert worker.metric("copy_bytes_total", leg="gpu_to_host") == 8 * AREA
        assert worker.metric("copy_bytes_total", leg="host_to_gpu") == 4 * AREA
        assert worker.metric("miss_chunks_total", reason="never-stored") == 3


def test_engines_report_through_their_worker() -> None:
    name = "blockyard_engine_hit_tokens_total"
    with WorkerProcess() as worker, Engine(worker.socket) as engine:
        for _ in range(2):
            engine.scheduler.send(attach.EngineCounters([(name, "", 40.0), ("no-such-metric", "", 1.0)]))
        engine.acquire([key(1)])
        text = worker.get("/metrics")[1]
        (line,) = [line for line in text.splitlines() if line.startswith(name + "{")]
        assert 'engine="engine-a"' in line
        assert line.endswith(" 80.0")
        assert worker.metric("metric_updates_refused_total") == 2


def test_alive_and_ready_without_any_cluster() -> None:
    with WorkerProcess() as worker:
        assert worker.get("/healthz") == (200, '{"alive": true}')
        assert worker.get("/readyz")[0] == 200
        assert worker.ready() == (True, {})
        assert worker.metric("leader_link", state="disabled") == 1
        assert worker.metric("etcd_registration", state="disabled") == 1


def test_a_key_has_a_story() -> None:
    with WorkerProcess() as worker, Engine(worker.socket) as engine:
        engine.store({key(1): b"s" * AREA})
        status, text = worker.get(f"/debug/story?key={key(1).hex()}")
        story = json.loads(text)["story"]
        assert status == 200
        assert [step["after"] for step in story] == ["FILLING", "READY"]
        assert json.loads(worker.get(f"/debug/story?key={key(2).hex()}")[1])["story"] == []


@pytest.mark.parametrize("query", ["", "?key=", "?key=zz", "?key=" + "ab" * 31])
def test_a_wrong_key_is_one_clear_error(query: str) -> None:
    with WorkerProcess() as worker:
        status, text = worker.get(f"/debug/story{query}")
        assert status == 400
        assert json.loads(text)["error"].endswith("right: 64 hex digits")


def test_engines_that_are_gone_are_shown_no_more_in_the_end() -> None:
    name = "blockyard_engine_hit_tokens_total"
    with WorkerProcess() as worker:
        for number in range(40):
            with Engine(worker.socket, hello(engine=f"engine-{number}")) as engine:
                engine.scheduler.send(attach.EngineCounters([(name, "", 1.0)]))
                engine.acquire([key(1)])
        worker.wait_metric("sessions", 0)
        lines = [line for line in worker.get("/metrics")[1].splitlines() if line.startswith(name + "{")]
        assert 0 < len(lines) < 40
        assert any('"engine-39"' in line for line in lines)


@pytest.mark.parametrize("path", ["/", "/v1/workers", "/debug/no-such-page"])
def test_an_unknown_path_is_one_line_of_json(path: str) -> None:
    with WorkerProcess() as worker:
        status, body = worker.get(path)
        assert (status, json.loads(body)) == (404, {"error": f"GET {path}: Not Found"})


def test_what_is_degraded_tells_its_time_as_the_leader_does() -> None:
    with WorkerProcess(etcd="127.0.0.1:1") as worker:
        while not (troubles := json.loads(worker.get("/readyz")[1])["degraded"]):
            time.sleep(0.05)
        for trouble in troubles:
            assert datetime.fromisoformat(trouble["since"]).utcoffset() == timedelta(0)


def test_noise_is_told_off_in_json_without_a_traceback() -> None:
    with WorkerProcess() as worker:
        status, body = worker.get("/healthz?" + "x" * 9000)
        assert (status, list(json.loads(body))) == (400, ["error"])
        assert "Traceback" not in worker.log
