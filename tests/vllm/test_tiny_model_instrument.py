"""The tiny model as an instrument: its greedy tokens change when keys and values do, and never otherwise.

Every test that compares tokens rests on this; without it, "same tokens" could mean that nothing was looked at.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an installed vLLM")

from blockyard.cli.demo.tiny_model import cached_model
from support import vllm_inproc as inproc

pytestmark = pytest.mark.vllm

LENGTHS = [300, 1000, 3000]


def prompt(seed: int, length: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(256) for _ in range(length)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    model: Path = cached_model(tmp_path_factory.mktemp("models"))
    with inproc.running_engine(model, gpu_blocks=128) as llm:
        yield llm


@pytest.fixture(autouse=True)
def empty_cache(engine: Any) -> None:
    inproc.reset_engine_cache(engine)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_prefix_hit_gives_the_tokens_of_a_recompute(engine: Any, length: int) -> None:
    cold = inproc.generate(engine, prompt(1, length))
    hit = inproc.generate(engine, prompt(1, length))
    assert cold.num_cached_tokens == 0
    assert hit.num_cached_tokens == (length - 1) // 32 * 32
    assert hit.token_ids == cold.token_ids


def test_answers_are_rich_and_differ_between_prompts(engine: Any) -> None:
    answers = [inproc.generate(engine, prompt(seed, 1000)).token_ids for seed in range(4)]
    assert all(len(set(answer)) >= 8 for answer in answers)
    assert len({tuple(answer) for answer in answers}) == len(answers)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("where", [0.0, 0.5, 0.9])
def test_one_corrupted_block_changes_the_tokens(engine: Any, length: int, where: float) -> None:
    before = inproc.generate(engine, prompt(2, length))
    inproc.corrupt_cached_block(engine, where)
    after = inproc.generate(engine, prompt(2, length))
    assert after.num_cached_tokens > 0
    assert after.token_ids != before.token_ids
