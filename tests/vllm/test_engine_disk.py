"""A real engine gets back what its worker has on disk alone: same tokens, also after the worker was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import CHUNK, TOKENS, AttachedEngine, attached_engine, prompt, until
from support.vllm_inproc import generate, running_engine
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

# Eight chunks fit in the pool; the prompt has five, and each of the others has six.
CHUNKS = 5
PROMPT = prompt(61, CHUNKS * CHUNK)
OTHERS = [prompt(seed, 6 * CHUNK) for seed in (62, 63)]
GPU_BLOCKS = 144


@pytest.fixture(scope="module")
def tokens(model: Path) -> list[int]:
    """What the engine says without Blockyard."""
    with running_engine(model, gpu_blocks=GPU_BLOCKS) as llm:
        return generate(llm, PROMPT, TOKENS).token_ids


@pytest.fixture(scope="module")
def engine(model: Path, tokens: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttachedEngine]:
    folder = tmp_path_factory.mktemp("disk")
    disk = {"disk": f"{folder}:512MiB", "disk_segment": "64MiB", "disk_floor": "0B"}
    with (
        WorkerProcess(host_pool="32MiB", slab_size="32MiB", **disk) as worker,
        # A test machine is slow: the reads must come in time for the test to see them.
        attached_engine(model, worker, gpu_blocks=GPU_BLOCKS, acquire_deadline_ms=5000) as engine,
    ):
        engine.wait_attached()
        engine.ask(PROMPT)
        written(engine, CHUNKS)
        push_out(engine)
        yield engine


def written(engine: AttachedEngine, chunks: int) -> None:
    until(lambda: engine.worker.metric("disk_copies") >= chunks, f"{chunks} chunks on disk")


def push_out(engine: AttachedEngine) -> None:
    """Fill the pool with something else."""
    for number, other in enumerate(OTHERS, start=1):
        engine.ask_afresh(other)
        written(engine, CHUNKS + 6 * number)


def test_what_is_on_disk_alone_comes_back(engine: AttachedEngine, tokens: list[int]) -> None:
    again = engine.ask_afresh(PROMPT)
    assert again.token_ids == tokens
    assert again.num_cached_tokens == len(PROMPT)
    assert engine.worker.metric("hit_chunks_total", tier="disk") == CHUNKS
    engine.check_idle_books()


def test_a_killed_worker_comes_back_with_what_it_had(engine: AttachedEngine, tokens: list[int]) -> None:
    engine.worker.kill()
    engine.worker.start()
    written(engine, CHUNKS + 12)
    engine.wait_attached()
    again = engine.ask_afresh(PROMPT)
    assert again.token_ids == tokens
    assert again.num_cached_tokens == len(PROMPT)
    assert engine.worker.metric("hit_chunks_total", tier="disk") == CHUNKS
