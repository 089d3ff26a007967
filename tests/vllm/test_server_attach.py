"""Two vLLM servers and no worker at first: they serve, attach when one comes, and then share what they store."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.vllm_load import Load, prompt
from support.vllm_servers import wait_attached
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
