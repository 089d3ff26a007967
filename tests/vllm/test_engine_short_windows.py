"""Windows shorter than a chunk: while a request runs, blocks at the front of its chunk already belong to another one.

Such a chunk is stored without these pages, and loaded without them; the answers prove that none of them was wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.engine.jobs import BlockRange
from blockyard.engine.vllm.chains import NO_BLOCK, Chain
from support.attached_engine import CHUNK, AttachedEngine, attached_engine, prompt
from support.tiny_gemma import TinyGemma, write_gemma
from support.vllm_inproc import scheduler
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

WINDOW = 100
# Enough for one request of the longest; all together have to take each other's blocks.
GPU_BLOCKS = 120
TURN = 460
ANSWER = 64


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttachedEngine]:
    """It keeps the windows before every chunk's end, so that answers are found again as well."""
    model = write_gemma(tmp_path_factory.mktemp("models") / "gemma", TinyGemma(window=WINDOW))
    settings = {"max_length": 1100, "prefix_cache_retention_interval": None}
    with (
        WorkerProcess(host_pool="128MiB", slab_size="8MiB") as worker,
        attached_engine(model, worker, gpu_blocks=GPU_BLOCKS, engine=settings) as engine,
    ):
        engine.wait_attached()
        yield engine


def test_the_front_pages_of_such_a_chunk_are_left_out(engine: AttachedEngine) -> None:
    groups = scheduler(engine.llm).connector._manager._groups
    assert {(group.window, group.first_page) for group in groups} == {(0, 0), (WINDOW, 4)}


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks at the front of each chunk that was stored had been given away before."""
    counts: list[int] = []
    real = Chain.blocks_to_store

    def noting(chain: Chain, index: int) -> BlockRange | None:
        found = real(chain, index)
        first = index * chain.group.blocks_per_chunk
        if found is not None:
            counts.append(chain._state.block_ids[first : first + chain.group.first_page].count(NO_BLOCK))
        return found

    monkeypatch.setattr(Chain, "blocks_to_store", noting)
    return counts


def test_answers_that_many_requests_wrote_at_once_are_found_again(
    engine: AttachedEngine, given_away: list[int]
) -> None:
    prompts = [prompt(seed, TURN) for seed in range(1, 4)]
    answers = engine.ask_all(prompts, length=ANSWER)
    assert max(given_away) > 0, "otherwise this shows nothing"
    turns = [p + a.token_ids + prompt(9, 40) for p, a in zip(prompts, answers, strict=True)]
    loaded = [engine.ask_afresh(tokens, length=8) for tokens in turns]
    whole = (TURN + ANSWER) // CHUNK * CHUNK
    assert [answer.num_cached_tokens for answer in loaded] == [whole] * len(turns)
    engine.lose_gpu_cache()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    computed = [engine.ask(tokens, length=8) for tokens in turns]
    assert [answer.token_ids for answer in loaded] == [answer.token_ids for answer in computed]
    engine.check_idle_books()


def test_a_prompt_of_whole_chunks_is_loaded_up_to_its_last_token(engine: AttachedEngine) -> None:
    tokens = prompt(11, 4 * CHUNK)
    right = engine.ask(tokens)
    again = engine.ask_afresh(tokens)
    assert again.token_ids == right.token_ids
    assert again.num_cached_tokens == 4 * CHUNK - 1
