"""The prefix cache is reset under requests that run, load or wait: right tokens, no dead engine, no pin left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import AttachedEngine, Running, attached_engine, prompt
from support.vllm_inproc import scheduler
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

GPU_BLOCKS = 64


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[AttachedEngine]:
    """Pins last longer than the tests, so that one left behind is seen."""
    with (
        WorkerProcess(host_pool="128MiB", slab_size="32MiB", pin_ttl="600s") as worker,
        attached_engine(model, worker, gpu_blocks=GPU_BLOCKS) as engine,
    ):
        engine.wait_attached()
        yield engine


def test_running_requests_that_are_loaded_again_in_the_step_of_the_reset(engine: AttachedEngine) -> None:
    tokens = prompt(1, 1000)
    right = engine.ask(tokens, length=64)
    running = Running(engine)
    running.add(tokens, 64)
    transfers = scheduler(engine.llm).connector.scheduler
    running.step_until(
        lambda: scheduler(engine.llm).running and not transfers._jobs, "it runs, and nothing is being stored"
    )
    assert engine.llm.reset_prefix_cache(reset_running_requests=True)
    assert running.answers() == [right.token_ids]
    engine.check_idle_books()


def test_a_reset_of_the_connector_said_twice_while_stores_are_under_way(engine: AttachedEngine) -> None:
    tokens = prompt(4, 1000)
    running = Running(engine)
    running.add(tokens, 4)
    transfers = scheduler(engine.llm).connector.scheduler
    running.step_until(lambda: transfers._jobs, "something is being stored")
    for _ in range(2):
        engine.llm.reset_prefix_cache(reset_connector=True)
    right = running.answers()
    engine.check_idle_books()
    assert [engine.ask_afresh(tokens, length=4).token_ids] == right


def test_a_reset_of_the_connector_lets_go_of_what_waiting_requests_have_pinned(engine: AttachedEngine) -> None:
    waits, hogs = prompt(2, 1500), prompt(3, 1500)
    right = [engine.ask(tokens, length=64).token_ids for tokens in (hogs, waits)]
    engine.lose_gpu_cache()
    running = Running(engine)
    for tokens in (hogs, waits):
        running.add(tokens, 64)
    manager = scheduler(engine.llm).connector._manager
    running.step_until(lambda: any(one.answered for one in manager._requests.values()), "one waits, its chunks pinned")
    engine.llm.reset_prefix_cache(reset_connector=True)
    engine.worker.wait_metric("pins", 0)
    engine.worker.wait_metric("slots", 0, state="doomed")
    assert running.answers() == right
    engine.check_idle_books()
