"""A real engine gets its own blocks back from the worker: same tokens, less computed, nothing left pinned."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import CHUNK, TOKENS, AttachedEngine, attached_engine, prompt, until
from support.vllm_inproc import Generated, generate, running_engine, settle
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

# A prompt of whole chunks is loaded whole; vLLM counts it so, and computes its last token once more.
LENGTHS_AND_HITS = {1: (1000, 768), 2: (2048, 2048), 3: (300, 256), 4: (100, 0)}
PROMPTS = {seed: prompt(seed, length) for seed, (length, _) in LENGTHS_AND_HITS.items()}
GPU_BLOCKS = 96


@pytest.fixture(scope="module")
def without(model: Path) -> dict[int, Generated]:
    """What the engine says without Blockyard."""
    with running_engine(model, gpu_blocks=GPU_BLOCKS) as llm:
        return {seed: generate(llm, tokens, TOKENS) for seed, tokens in PROMPTS.items()}


@pytest.fixture(scope="module")
def engine(model: Path, without: dict[int, Generated]) -> Iterator[AttachedEngine]:
    with (
        WorkerProcess(host_pool="192MiB", slab_size="32MiB") as worker,
        attached_engine(model, worker, gpu_blocks=GPU_BLOCKS) as engine,
    ):
        engine.wait_attached()
        yield engine


@pytest.mark.parametrize("seed", PROMPTS)
def test_tokens_are_those_of_an_engine_without_blockyard(
    engine: AttachedEngine, without: dict[int, Generated], seed: int
) -> None:
    tokens = PROMPTS[seed]
    assert engine.ask(tokens).token_ids == without[seed].token_ids
    again = engine.ask_afresh(tokens)
    assert again.token_ids == without[seed].token_ids
    assert again.num_cached_tokens == LENGTHS_AND_HITS[seed][1]
    engine.check_idle_books()


def test_answers_of_a_chat_are_kept_for_its_next_turn(engine: AttachedEngine) -> None:
    first = prompt(11, 500)
    answer = engine.ask(first, length=64)
    second = first + answer.token_ids + prompt(12, 40)
    engine.lose_gpu_cache()
    turn = engine.ask(second)
    assert turn.num_cached_tokens == 512, "the chunk that holds both the prompt's end and the answer's start"


def test_a_prefix_is_shared_and_what_follows_is_not(engine: AttachedEngine) -> None:
    shared = prompt(21, 2 * CHUNK)
    engine.ask(shared + prompt(22, 300))
    engine.lose_gpu_cache()
    other = engine.ask(shared + prompt(23, 300))
    assert other.num_cached_tokens == 2 * CHUNK


def test_many_requests_at_once_in_a_gpu_cache_too_small_for_them(engine: AttachedEngine) -> None:
    prompts = [prompt(seed, 700 + 50 * seed) for seed in range(31, 41)]
    alone = [engine.ask(tokens) for tokens in prompts]
    together = engine.ask_all(prompts)
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    engine.check_idle_books()


def ask_with_hints(engine: AttachedEngine, tokens: list[int], hints: object) -> Generated:
    answer = generate(engine.llm, tokens, TOKENS, kv_transfer_params={"blockyard": hints})
    settle(engine.llm)
    return answer


def test_a_request_that_is_not_to_be_stored_is_not_and_loads_all_the_same(engine: AttachedEngine) -> None:
    tokens = prompt(45, 2 * CHUNK)
    asked = engine.worker.metric("fills_asked_total")
    first = ask_with_hints(engine, tokens, {"no_store": True, "session": "talk"})
    engine.lose_gpu_cache()
    assert ask_with_hints(engine, tokens, {"no_store": True}) == first
    assert engine.worker.metric("fills_asked_total") == asked
    engine.ask_afresh(tokens)
    engine.lose_gpu_cache()
    again = ask_with_hints(engine, tokens, {"no_store": True})
    assert (again.token_ids, again.num_cached_tokens) == (first.token_ids, 2 * CHUNK)
    engine.check_idle_books()


def test_right_hints_reach_the_worker_and_wrong_ones_fail_nothing(engine: AttachedEngine) -> None:
    def told(name: str) -> float:
        return engine.worker.metric("hints_total", field=name)

    def refused() -> float:
        return engine.engine_metric("blockyard_engine_hints_refused_total")

    before = {name: told(name) for name in ("priority", "ttl", "session", "release", "pin")}
    wrong = refused()
    tokens = prompt(46, CHUNK)
    answer = ask_with_hints(engine, tokens, {"priority": 70, "ttl": 60, "session": "s" * 129, "pin": -1, "color": 1})
    assert ask_with_hints(engine, tokens, "no mapping").token_ids == answer.token_ids
    assert {name: told(name) - before[name] for name in before} == {
        "priority": 1,
        "ttl": 1,
        "session": 0,
        "release": 0,
        "pin": 0,
    }
    until(lambda: refused() == wrong + 4, "the count of a session too long, a wrong pin, no hint, and no mapping")
    engine.worker.wait_metric("hinted_requests", 0)


def test_one_stored_prefix_serves_many_waiting_requests_with_one_load(engine: AttachedEngine) -> None:
    shared = prompt(51, 4 * CHUNK)
    engine.ask(shared)
    engine.lose_gpu_cache()
    before = engine.worker.metric("loads_completed_total")
    answers = engine.ask_all([shared + prompt(60 + n, 20) for n in range(8)], length=4)
    assert [answer.num_cached_tokens for answer in answers] == [4 * CHUNK] * 8
    assert engine.worker.metric("loads_completed_total") - before == 4
    engine.check_idle_books()


def test_the_pool_turns_over_and_every_answer_stays_right(engine: AttachedEngine) -> None:
    prompts = [prompt(seed, 2048) for seed in range(71, 83)]
    first = [engine.ask(tokens, length=4) for tokens in prompts]
    again = [engine.ask_afresh(tokens, length=4) for tokens in prompts]
    assert [a.token_ids for a in again] == [a.token_ids for a in first]
    assert engine.worker.metric("evictions_total") > 0
    assert any(answer.num_cached_tokens == 0 for answer in again), "the pool holds fewer chunks than were stored"
    engine.check_idle_books()


def test_the_engines_own_numbers_add_up_at_the_worker(engine: AttachedEngine) -> None:
    name = "blockyard_engine_{}_tokens_total"
    tokens = prompt(91, 1000)

    def numbers() -> dict[str, float]:
        return {what: engine.engine_metric(name.format(what)) for what in ("requested", "loaded", "computed", "hit")}

    engine.ask(tokens)
    engine.lose_gpu_cache()
    before = numbers()
    engine.ask(tokens)
    engine.ask(prompt(92, 10))
    until(lambda: numbers()["requested"] - before["requested"] == 1010, "both requests in the engine's numbers")
    after = numbers()
    assert {what: after[what] - before[what] for what in after} == {
        "requested": 1010,
        "loaded": 768,
        "hit": 768,
        "computed": 242,
    }
    assert engine.engine_metric("blockyard_engine_ttft_saved_seconds_total") > 0
