"""Two ranks, each with a part of every chunk: a chunk counts when both parts are in, and none outlives them halved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.cli.demo.tiny_model import TinyModel, cached_model
from support.attached_engine import CHUNK, TOKENS, AttachedEngine, Running, attached_engine, prompt
from support.host_pool import OpenedPool
from support.vllm_inproc import unsent_is_forgotten
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

RANKS = 2
PROMPT = prompt(1, 600)
WHOLE = 600 // CHUNK * CHUNK


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cached_model(tmp_path_factory.mktemp("models"), TinyModel(layers=4, hidden=256, heads=4, kv_heads=2))


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(host_pool="64MiB", slab_size="8MiB") as worker:
        yield worker


@contextmanager
def two_ranks(model: Path, worker: WorkerProcess) -> Iterator[AttachedEngine]:
    """The scheduler is in this process, the ranks have one each."""
    with (
        unsent_is_forgotten(),
        attached_engine(model, worker, gpu_blocks=96, engine={"tensor_parallel_size": RANKS}) as engine,
    ):
        worker.wait_metric("sessions", RANKS, role="rank", state="live")
        worker.wait_metric("sessions", 1, role="scheduler", state="live")
        yield engine


@pytest.fixture(scope="module")
def running() -> Iterator[ExitStack]:
    """What runs, so that a test may end it."""
    with ExitStack() as running:
        yield running


@pytest.fixture(scope="module")
def engine(small: Path, worker: WorkerProcess, running: ExitStack) -> AttachedEngine:
    return running.enter_context(two_ranks(small, worker))


@pytest.fixture(scope="module")
def right(engine: AttachedEngine) -> list[int]:
    answer = engine.ask(PROMPT)
    assert answer.num_cached_tokens == 0
    return answer.token_ids


def test_what_two_ranks_stored_they_load(engine: AttachedEngine, right: list[int]) -> None:
    again = engine.ask_afresh(PROMPT)
    assert again.token_ids == right
    assert again.num_cached_tokens == WHOLE
    engine.check_idle_books()


def test_each_rank_has_a_part_of_its_own(engine: AttachedEngine, right: list[int]) -> None:
    engine.wait_verified()
    with OpenedPool(engine.worker.pid) as pool:
        ready = pool.ready()
    assert len(ready) == WHOLE // CHUNK
    for record in ready:
        assert (record.areas, record.part_mask) == (RANKS, 0b11)
        assert len(set(record.checksums)) == RANKS, "different heads have different bytes"


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_byte_spoiled_in_one_ranks_part_is_noticed_and_computed_instead(
    engine: AttachedEngine, right: list[int], rank: int
) -> None:
    engine.wait_verified()
    mismatches = engine.worker.metric("checksum_mismatches_total")
    with OpenedPool(engine.worker.pid) as pool:
        record = pool.ready()[0]
        pool.flip(record, rank * record.area_stride + 1)
    assert engine.ask_afresh(PROMPT).token_ids == right
    engine.worker.wait_metric("checksum_mismatches_total", mismatches + 1)
    engine.check_idle_books()
    again = engine.ask_afresh(PROMPT)
    assert again.num_cached_tokens == WHOLE, "what was computed instead was stored again"
    assert again.token_ids == right


def test_a_killed_rank_leaves_no_half_chunk_and_a_new_engine_hits(
    small: Path, engine: AttachedEngine, right: list[int], running: ExitStack
) -> None:
    worker = engine.worker
    stored = worker.metric("fills_committed_total")
    requests = Running(engine)
    for seed in range(2, 6):
        requests.add(prompt(seed, 600), TOKENS)
    requests.step_until(lambda: worker.metric("fills_committed_total") > stored, "something is stored")
    os.kill(engine.llm.llm_engine.model_executor.workers[1].proc.pid, signal.SIGKILL)
    with pytest.raises(Exception, match=r"."):
        requests.answers()
    running.close()
    worker.wait_metric("sessions", 0)
    engine.check_idle_books()
    with OpenedPool(worker.pid) as pool:
        assert all(record.part_mask == 0b11 for record in pool.ready())
    with two_ranks(small, worker) as second:
        again = second.ask(PROMPT)
        assert again.num_cached_tokens == WHOLE
        assert again.token_ids == right
