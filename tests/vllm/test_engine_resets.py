"""Caches are reset and weights change under requests that run, load or wait.

Right tokens, nothing stale, no dead engine, no pin left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from safetensors.torch import load_file

from support.attached_engine import CHUNK, TOKENS, AttachedEngine, Running, attached_engine, prompt
from support.vllm_inproc import generate, scheduler, settle
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

GPU_BLOCKS = 64
WHOLE = 1000 // CHUNK * CHUNK

ChangeWeights = Callable[[AttachedEngine, Path], None]


def by_a_function(engine: AttachedEngine, model: Path) -> None:
    def change(served: Any) -> None:
        weight = served.model.embed_tokens.weight.data
        weight.copy_(weight.roll(7, dims=0))

    engine.llm.apply_model(change)


def by_hand(engine: AttachedEngine, model: Path) -> None:
    """As code does that has the model at hand in the rank's process."""
    weights = load_file(model / "model.safetensors")
    values = {
        name: value * torch.linspace(0.1, 2.0, len(value)) for name, value in weights.items() if "layernorm" in name
    }
    engine.llm.llm_engine.model_executor.driver_worker.worker.model_runner.model.load_weights(iter(values.items()))


def by_reloading(engine: AttachedEngine, model: Path) -> None:
    """The weights of the beginning once more, in an epoch of their own."""
    engine.llm.collective_rpc("reload_weights")


def stores(engine: AttachedEngine) -> int:
    """Chunks that were ever stored."""
    return int(engine.worker.metric("fills_committed_total"))


def computed(engine: AttachedEngine, tokens: list[int]) -> list[int]:
    """The answer with the weights of now, nothing of it from any cache."""
    answer = generate(engine.llm, tokens, TOKENS, cache_salt=str(uuid4()))
    settle(engine.llm)
    assert answer.num_cached_tokens == 0
    return answer.token_ids


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


def test_a_reset_leaves_running_requests_without_stores_and_preempted_ones_begin_anew(engine: AttachedEngine) -> None:
    kept, preempted = prompt(20, 1005), prompt(21, 1005)
    for tokens, recomputed in ((kept, False), (preempted, True)):
        running = Running(engine)
        running.add(tokens, 32)
        running.step_until(lambda: scheduler(engine.llm).running, "it runs")
        running.settle_stores()
        before = stores(engine)
        engine.llm.reset_prefix_cache(reset_connector=True, reset_running_requests=recomputed)
        (answer,) = running.answers()
        engine.check_idle_books()
        # With the answer the request fills a chunk more.
        assert stores(engine) == before + (recomputed * (1 + WHOLE // CHUNK))
        again = engine.ask_afresh(tokens, length=32)
        assert again.num_cached_tokens == (WHOLE if recomputed else 0)
        assert again.token_ids == answer


def test_asleep_and_awake(engine: AttachedEngine) -> None:
    """Asleep without its memory an engine keeps nothing, with it everything. On a CPU it keeps its memory."""
    tokens = prompt(22, 1000)
    right = engine.ask(tokens)
    for level, kept in ((0, True), (1, False), (2, False)):
        engine.lose_gpu_cache()
        engine.llm.sleep(level=level)
        engine.llm.wake_up(["scheduling"] if level == 0 else None)
        before = stores(engine)
        again = engine.ask(tokens)
        assert again.num_cached_tokens == (WHOLE if kept else 0)
        assert again.token_ids == right.token_ids
        assert stores(engine) == before + (0 if kept else WHOLE // CHUNK)
        assert engine.ask_afresh(tokens).num_cached_tokens == WHOLE
    engine.check_idle_books()


@pytest.mark.parametrize("how", [by_a_function, by_hand, by_reloading], ids=lambda how: str(how.__name__))
def test_weights_that_change_without_a_word(engine: AttachedEngine, how: ChangeWeights, model: Path) -> None:
    tokens = prompt(23, 1000)
    old = engine.ask_afresh(tokens)
    assert engine.ask_afresh(tokens).num_cached_tokens == WHOLE
    engine.lose_gpu_cache()
    how(engine, model)
    stored = stores(engine)
    new = engine.ask(tokens)
    engine.check_idle_books()
    assert stores(engine) == stored + WHOLE // CHUNK, "of the request that brought the news"
    assert new.token_ids == computed(engine, tokens)
    assert new.token_ids != old.token_ids
    again = engine.ask_afresh(tokens)
    assert again.num_cached_tokens == WHOLE
    assert again.token_ids == new.token_ids


def test_what_old_weights_have_computed_is_not_stored_under_new_ones(engine: AttachedEngine, model: Path) -> None:
    """In a request that runs over the change, and in vLLM's own cache, which nobody has reset."""
    tokens = prompt(24, 1005)
    longer = tokens + prompt(25, 500)
    running = Running(engine)
    running.add(tokens, 32)
    running.step_until(lambda: scheduler(engine.llm).running, "it runs")
    running.settle_stores()
    stored = stores(engine)
    by_a_function(engine, model)
    running.answers()
    stale = engine.ask(longer)
    assert stale.num_cached_tokens >= WHOLE, "vLLM goes on with the old blocks"
    engine.check_idle_books()
    assert stores(engine) == stored
    right = engine.ask_afresh(longer)
    assert right.num_cached_tokens == 0
    assert right.token_ids == computed(engine, longer)
    assert stores(engine) > stored


def test_what_only_looks_at_an_engine_costs_no_hits(engine: AttachedEngine) -> None:
    tokens = prompt(26, 1000)
    engine.ask(tokens)
    for call in ("check_health", "get_supported_tasks", "get_model_inspection"):
        engine.llm.collective_rpc(call)
    assert engine.ask_afresh(tokens).num_cached_tokens == WHOLE
