"""Worker, leader and etcd die or hang under two vLLM servers: no request fails, and what was kept is found again.

The engines are never restarted here, and never told anything.
"""

from __future__ import annotations

import time

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.vllm_load import prompt
from support.vllm_servers import wait_attached
from support.vllm_stack import Part, Stack
from support.worker_books import check_idle

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PROMPTS = [prompt(seed, 1100) for seed in (501, 502)]
AWAY_S = 4.0


@pytest.mark.parametrize("name", ["leader", "etcd"])
def test_without_a_cluster_the_local_hits_are_the_same(settled: Stack, name: str) -> None:
    fresh = prompt(len(name), 1100)
    settled.store(settled.first, *PROMPTS)
    with settled.without(settled.part(name)):
        settled.wait_hits(settled.second, *PROMPTS)
        settled.store(settled.first, fresh)
        settled.wait_hits(settled.second, fresh)
    settled.settle()


def test_a_worker_killed_while_idle_is_attached_again(settled: Stack) -> None:
    settled.store(settled.first, *PROMPTS)
    with settled.without(settled.worker):
        answers = settled.first.ask_afresh(*PROMPTS)
        assert not any(settled.answers.differs(*pair) for pair in zip(PROMPTS, answers, strict=True))
        assert [answer.cached_tokens for answer in answers] == [0, 0]
    wait_attached(settled.worker, 2)
    settled.first.ask_afresh(*PROMPTS)
    check_idle(settled.worker)
    settled.wait_hits(settled.second, *PROMPTS)
    settled.settle()


@pytest.mark.parametrize("name", ["worker", "leader", "etcd"])
def test_killed_under_load_no_request_notices(settled: Stack, name: str) -> None:
    kill_under_load(settled, settled.part(name), times=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["worker", "leader", "etcd"])
def test_killed_again_and_again_under_load_no_request_notices(settled: Stack, name: str) -> None:
    kill_under_load(settled, settled.part(name), times=5)


def kill_under_load(stack: Stack, part: Part, times: int) -> None:
    with stack.load() as load:
        load.wait_answers(4)
        for _ in range(times):
            with stack.without(part):
                load.wait_answers(4)
            wait_attached(stack.worker, 2)
            load.wait_answers(4)
    assert load.failures == []
    stack.settle()
    check_hits_come_back(stack)


def check_hits_come_back(stack: Stack) -> None:
    for tokens in PROMPTS:
        stack.first.ask_afresh(tokens)
    check_idle(stack.worker)
    stack.wait_hits(stack.second, *PROMPTS)


def test_a_frozen_worker_holds_nobody_up_and_is_used_again_when_it_thaws(settled: Stack) -> None:
    with settled.load() as load:
        load.wait_answers(4)
        settled.worker.freeze()
        try:
            time.sleep(AWAY_S)
            load.wait_answers(4)
        finally:
            settled.worker.thaw()
        wait_attached(settled.worker, 2)
        load.wait_answers(4)
    print(f"the slowest request took {load.slowest_s:.2f} s; the worker was frozen for {AWAY_S} s and four answers")
    assert load.failures == []
    settled.settle()
    check_hits_come_back(settled)
