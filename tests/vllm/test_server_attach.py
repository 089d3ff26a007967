"""Two vLLM servers and no worker at first: they serve, attach when one comes, and then share what they store."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.engine_series import scraped
from support.leader_process import wait_for
from support.vllm_load import Load, prompt
from support.vllm_servers import REQUEST_S, wait_attached
from support.vllm_stack import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]

PROMPTS = [prompt(seed, 1100) for seed in (401, 402)]


def test_engines_serve_without_a_worker_and_attach_when_one_comes(stack: Stack) -> None:
    if stack.worker.alive:
        stack.worker.terminate()
    with Load(stack.answers, stack.first, rounds=1) as detached:
        pass
    assert detached.failures == []
    stack.worker.start()
    wait_attached(stack.worker, 2)
    with stack.load() as attached:
        attached.wait_answers(16)
    assert attached.failures == []
    assert stack.worker.metric("loads_completed_total") > 0
    stack.settle()


def test_an_engine_hits_what_another_has_stored(settled: Stack) -> None:
    settled.store(settled.first, *PROMPTS)
    settled.wait_hits(settled.second, *PROMPTS)
    settled.settle()


def test_hints_of_a_request_body_reach_the_worker_and_wrong_ones_fail_nothing(settled: Stack) -> None:
    url, worker = settled.first.url, settled.worker
    settled.store(settled.first, PROMPTS[0])

    def told() -> dict[str, float]:
        return {name: worker.metric("hints_total", field=name) for name in ("priority", "ttl", "session")}

    before, wrong = told(), scraped(url)
    hints = {"priority": 70, "ttl": 60, "no_store": True, "pin": -1}
    asked = worker.metric("fills_asked_total")
    answer = complete(url, session_id="chat-7", kv_transfer_params={"blockyard": hints})
    assert answer["choices"][0]["text"] is not None
    wait_for(lambda: worker.metric("hinted_requests") == 0, REQUEST_S, "the request's end", lambda: worker.log)
    after = told()
    assert {name: after[name] - before[name] for name in after} == {"priority": 1, "ttl": 1, "session": 1}
    assert worker.metric("fills_asked_total") == asked
    wait_for(lambda: scraped(url).since(wrong, "hints_refused_total", "pin") == 1, REQUEST_S, "a wrong hint's count")
    settled.settle()


def complete(url: str, **fields: Any) -> dict[str, Any]:
    """An answer to a prompt of several chunks."""
    body = {"model": "tiny", "prompt": prompt(403, 1100), "max_tokens": 4, "temperature": 0.0, **fields}
    asked = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(asked, timeout=REQUEST_S) as answered:
        found: dict[str, Any] = json.load(answered)
    return found
