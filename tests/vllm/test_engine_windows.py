"""A model of three cache groups, two of them with sliding windows: the same promises as for one group."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import CHUNK, TOKENS, AttachedEngine, Running, attached_engine, prompt, until
from support.tiny_gemma import TinyGemma, write_gemma
from support.vllm_inproc import Generated, generate, running_engine, spoil_cached_block
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

GROUPS = 3
WINDOW = TinyGemma().window
# The last token has to be computed for the answer, and vLLM keeps windows only before the chunk that holds it.
LENGTHS_AND_HITS = {1: (1000, 768), 2: (1281, 1280), 3: (512, 256), 4: (100, 0)}
PROMPTS = {seed: prompt(seed, length) for seed, (length, _) in LENGTHS_AND_HITS.items()}
PROMPT = prompt(10, 1100)
WHOLE = 1100 // CHUNK * CHUNK
STORED = WHOLE // CHUNK + (GROUPS - 1) * -(-WINDOW // CHUNK)
"""Chunks of such a prompt: all of full attention, and each window before its last whole chunk's end."""
GPU_BLOCKS = 256
MAX_LENGTH = 2048


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("models") / "gemma")


@pytest.fixture(scope="module")
def without(gemma: Path) -> dict[int, Generated]:
    """What the engine says without Blockyard."""
    with running_engine(gemma, gpu_blocks=GPU_BLOCKS, max_length=MAX_LENGTH) as llm:
        return {seed: generate(llm, tokens, TOKENS) for seed, tokens in PROMPTS.items()}


@contextmanager
def one_engine(gemma: Path, worker: WorkerProcess) -> Iterator[AttachedEngine]:
    with attached_engine(gemma, worker, gpu_blocks=GPU_BLOCKS, engine={"max_length": MAX_LENGTH}) as engine:
        engine.wait_attached()
        yield engine


@pytest.fixture(scope="module")
def engine(gemma: Path, without: dict[int, Generated]) -> Iterator[AttachedEngine]:
    """The second engine of its worker: another one has stored the prompts, and is gone."""
    with WorkerProcess(host_pool="128MiB", slab_size="8MiB") as worker:
        with one_engine(gemma, worker) as first:
            for seed, tokens in PROMPTS.items():
                assert first.ask(tokens).token_ids == without[seed].token_ids
            first.wait_verified()
        with one_engine(gemma, worker) as second:
            yield second


@pytest.mark.parametrize("seed", PROMPTS)
def test_an_engine_gets_what_another_one_stored(
    engine: AttachedEngine, without: dict[int, Generated], seed: int
) -> None:
    answer = engine.ask(PROMPTS[seed])
    assert answer.token_ids == without[seed].token_ids
    assert answer.num_cached_tokens == LENGTHS_AND_HITS[seed][1]
    engine.check_idle_books()


@pytest.mark.parametrize("group", range(GROUPS))
def test_one_wrong_block_of_any_group_changes_the_tokens(engine: AttachedEngine, group: int) -> None:
    """The control of all that follows: equal tokens prove that every group's blocks were right."""
    engine.lose_gpu_cache()
    right = engine.ask(PROMPT)
    spoil_cached_block(engine.llm, group)
    wrong = engine.ask(PROMPT)
    engine.lose_gpu_cache()
    assert wrong.num_cached_tokens >= WHOLE
    assert wrong.token_ids != right.token_ids


def test_only_the_last_window_is_loaded_of_groups_that_see_no_further(engine: AttachedEngine) -> None:
    engine.ask(PROMPT)
    engine.lose_gpu_cache()
    before = engine.worker.metric("loads_completed_total")
    assert engine.ask(PROMPT).num_cached_tokens == WHOLE
    assert engine.worker.metric("loads_completed_total") - before == STORED
    engine.check_idle_books()


def test_a_prefix_is_shared_and_what_follows_is_not(engine: AttachedEngine) -> None:
    shared = prompt(21, 2 * CHUNK)
    engine.ask(shared + prompt(22, 300))
    other = shared + prompt(23, 100)
    right = engine.ask(other)
    again = engine.ask_afresh(other)
    assert again.token_ids == right.token_ids
    third = engine.ask_afresh(shared + prompt(24, 50))
    assert third.num_cached_tokens == 2 * CHUNK


def test_the_next_turn_of_a_chat_begins_where_the_last_prompt_ended(engine: AttachedEngine) -> None:
    first = prompt(31, 530)
    answer = engine.ask(first, length=64)
    second = first + answer.token_ids + prompt(32, 300)
    engine.lose_gpu_cache()
    turn = engine.ask(second)
    assert turn.num_cached_tokens == 2 * CHUNK
    assert engine.ask_afresh(second).token_ids == turn.token_ids


def test_many_requests_at_once(engine: AttachedEngine) -> None:
    prompts = [prompt(seed, 10 * seed) for seed in range(41, 45)]
    alone = [engine.ask(tokens) for tokens in prompts]
    engine.lose_gpu_cache()
    together = engine.ask_all(prompts)
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert all(answer.num_cached_tokens > 0 for answer in together)
    engine.check_idle_books()


@pytest.mark.parametrize("bad", [0, STORED // 2, STORED - 1])
def test_a_spoiled_chunk_of_any_group_is_noticed_and_computed_instead(engine: AttachedEngine, bad: int) -> None:
    tokens, others = prompt(50 + bad, 1100), engine.held()
    right = engine.ask(tokens)
    assert len(engine.held() - others) == STORED
    mismatches = engine.worker.metric("checksum_mismatches_total")
    engine.spoil(lambda index: index == bad, others)
    assert engine.ask_afresh(tokens).token_ids == right.token_ids
    engine.worker.wait_metric("checksum_mismatches_total", mismatches + 1)
    engine.check_idle_books()
    again = engine.ask_afresh(tokens)
    assert again.token_ids == right.token_ids
    assert again.num_cached_tokens == WHOLE, "what was computed instead was stored again"
    engine.worker.wait_metric("checksum_mismatches_total", mismatches + 1)


def test_every_byte_spoiled_costs_the_reuse_and_nothing_else(engine: AttachedEngine) -> None:
    name = "blockyard_engine_{}_tokens_total"
    tokens = prompt(61, 1100)
    right = engine.ask(tokens)
    engine.spoil()

    def numbers() -> dict[str, float]:
        return {what: engine.engine_metric(name.format(what)) for what in ("requested", "loaded", "computed", "hit")}

    before, mismatches = numbers(), engine.worker.metric("checksum_mismatches_total")
    assert engine.ask_afresh(tokens).token_ids == right.token_ids
    assert engine.worker.metric("checksum_mismatches_total") > mismatches
    engine.check_idle_books()
    engine.ask(prompt(62, 10))
    until(lambda: numbers()["requested"] - before["requested"] >= 1110, "both requests in the engine's numbers")
    after = numbers()
    assert {what: after[what] - before[what] for what in after} == {
        "requested": 1110,
        "loaded": 0,
        "computed": 1110,
        "hit": WHOLE,
    }


def test_a_worker_killed_while_many_requests_run(engine: AttachedEngine) -> None:
    prompts = [prompt(100 + n, 600) for n in range(4)]
    right = [answer.token_ids for answer in engine.ask_all(prompts)]
    engine.lose_gpu_cache()
    running = Running(engine)
    loads = engine.worker.metric("loads_resolved_total")
    for tokens in prompts:
        running.add(tokens, TOKENS)
    running.step_until(lambda: engine.worker.metric("loads_resolved_total") > loads, "something is loaded")
    engine.worker.kill()
    assert running.answers() == right
    engine.worker.start()
    engine.wait_attached()
    assert [engine.ask_afresh(tokens).token_ids for tokens in prompts] == right
    again = engine.ask_afresh(prompts[0])
    assert again.token_ids == right[0]
    assert again.num_cached_tokens == 2 * CHUNK
    engine.check_idle_books()
