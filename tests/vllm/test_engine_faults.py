"""A real engine, and a worker that lies, dies or freezes: right tokens each time, no request lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import CHUNK, AttachedEngine, attached_engine, prompt, until
from support.engine_series import shown_in_process
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PROMPT = prompt(1, 1500)
WHOLE = 1500 // CHUNK * CHUNK


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(host_pool="128MiB", slab_size="32MiB") as worker:
        yield worker


@pytest.fixture(scope="module")
def engine(model: Path, worker: WorkerProcess) -> Iterator[AttachedEngine]:
    with attached_engine(model, worker, engine={"disable_log_stats": False}) as engine:
        engine.wait_attached()
        yield engine


def test_a_spoiled_byte_is_noticed_counted_and_computed_instead(engine: AttachedEngine) -> None:
    right = engine.ask(PROMPT)
    engine.wait_verified()
    with_one_bad = engine.spoil(lambda index: index == 2)
    assert with_one_bad == 1
    assert engine.ask_afresh(PROMPT).token_ids == right.token_ids
    engine.worker.wait_metric("checksum_mismatches_total", 1)
    engine.worker.wait_metric("quarantined_total", 1)
    engine.check_idle_books()
    # What was computed instead was stored again: the next one hits whole.
    engine.wait_verified()
    assert engine.ask_afresh(PROMPT).token_ids == right.token_ids
    engine.worker.wait_metric("checksum_mismatches_total", 1)
    assert engine.worker.metric("loads_failed_total", reason="corrupt") == 1


def test_every_byte_spoiled_costs_the_reuse_and_nothing_else(engine: AttachedEngine) -> None:
    tokens = prompt(2, 1500)
    right = engine.ask(tokens)
    before = engine.worker.metric("checksum_mismatches_total")
    spoiled = engine.spoil()
    assert engine.ask_afresh(tokens).token_ids == right.token_ids
    found = engine.worker.metric("checksum_mismatches_total") - before
    assert 1 <= found <= spoiled
    engine.check_idle_books()


def test_a_request_whose_first_chunk_is_lost_is_counted_once(engine: AttachedEngine) -> None:
    name = "blockyard_engine_{}_tokens_total"
    tokens = prompt(7, 1500)
    engine.ask(tokens)
    engine.spoil()

    def numbers() -> dict[str, float]:
        return {what: engine.engine_metric(name.format(what)) for what in ("requested", "loaded", "computed", "hit")}

    before = numbers()
    engine.ask_afresh(tokens)
    engine.ask(prompt(8, 10))
    until(lambda: numbers()["requested"] - before["requested"] >= 1510, "both requests in the engine's numbers")
    after = numbers()
    assert {what: after[what] - before[what] for what in after} == {
        "requested": 1510,
        "loaded": 0,
        "computed": 1510,
        "hit": WHOLE,
    }


def test_a_killed_worker_costs_the_reuse_and_a_new_one_is_found(engine: AttachedEngine) -> None:
    tokens = prompt(3, 1500)
    right = engine.ask(tokens)
    engine.worker.kill()
    assert engine.ask_afresh(tokens).token_ids == right.token_ids
    engine.worker.start()
    engine.wait_attached()
    assert engine.ask_afresh(tokens).num_cached_tokens == 0, "a new worker has an empty pool"
    again = engine.ask_afresh(tokens)
    assert again.num_cached_tokens == WHOLE
    assert again.token_ids == right.token_ids
    engine.check_idle_books()


def test_vllms_own_metrics_show_a_load_that_its_worker_did_not_outlive(
    engine: AttachedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockyard.engine.vllm.rank import BlockyardRank

    tokens, submit = prompt(9, 1500), BlockyardRank.submit_load
    right = engine.ask(tokens)
    before = shown_in_process()
    assert engine.ask_afresh(tokens).num_cached_tokens == WHOLE
    hit = shown_in_process()
    assert hit.since(before, "loaded_tokens_total") == WHOLE
    assert hit.get("attached") == 1

    def killed_first(*args: Any) -> bool:
        engine.worker.kill()
        return submit(*args)

    monkeypatch.setattr(BlockyardRank, "submit_load", killed_first)
    assert engine.ask_afresh(tokens).token_ids == right.token_ids
    monkeypatch.undo()
    lost = shown_in_process()
    assert lost.since(hit, "recomputed_tokens_total", "detached") == WHOLE
    assert lost.since(hit, "loads_total", "detached") == WHOLE // CHUNK
    assert lost.since(hit, "loaded_tokens_total") == 0
    assert lost.since(hit, "copied_bytes_total", "host_to_gpu") == 0
    assert lost.labels("detached") == {"no-worker": 1}
    assert lost.labels("pending_copies") == {}
    assert lost.fallen(before) == []
    engine.worker.start()
    engine.wait_attached()


def test_a_worker_killed_while_many_requests_run(engine: AttachedEngine) -> None:
    prompts = [prompt(100 + n, 900) for n in range(6)]
    right = [answer.token_ids for answer in engine.ask_all(prompts)]
    engine.lose_gpu_cache()
    engine.worker.kill()
    assert [answer.token_ids for answer in engine.ask_all(prompts)] == right
    engine.worker.start()
    engine.wait_attached()


def test_a_frozen_worker_costs_a_bounded_wait_and_serves_again_when_it_thaws(engine: AttachedEngine) -> None:
    tokens = prompt(4, 1500)
    right = engine.ask(tokens)
    engine.worker.freeze()
    try:
        assert engine.ask_afresh(tokens).token_ids == right.token_ids
    finally:
        engine.worker.thaw()
    engine.wait_attached()

    def hits_again() -> bool:
        answer = engine.ask_afresh(tokens)
        assert answer.token_ids == right.token_ids
        return answer.num_cached_tokens == WHOLE

    until(hits_again, "a hit after the worker thawed")
    engine.check_idle_books()


def test_after_a_cache_reset_that_names_the_connector_nothing_is_found(engine: AttachedEngine) -> None:
    tokens = prompt(5, 1500)
    engine.ask(tokens)
    assert engine.ask_afresh(tokens).num_cached_tokens == WHOLE
    engine.lose_gpu_cache()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    assert engine.ask(tokens).num_cached_tokens == 0
    assert engine.ask_afresh(tokens).num_cached_tokens == WHOLE
    engine.check_idle_books()
