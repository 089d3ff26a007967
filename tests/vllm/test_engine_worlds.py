"""One worker, many engines after each other: its own kind finds its blocks again, any other kind finds none."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.cli.demo.tiny_model import TinyModel, write_model
from support.attached_engine import CHUNK, attached_engine, prompt, until
from support.vllm_inproc import Generated
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TINY = TinyModel(layers=4, hidden=256, heads=4, kv_heads=2)
PROMPT = prompt(7, 1000)
WHOLE = 1000 // CHUNK * CHUNK


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(host_pool="64MiB", slab_size="8MiB") as worker:
        yield worker


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model lies; what lies there changes."""
    path = tmp_path_factory.mktemp("model")
    write_model(path, TINY)
    return path


def unchanged(config: Any) -> Any:
    """An override of the model's configuration that nobody can look into."""
    return config


def first_answer(path: Path, worker: WorkerProcess, **engine: Any) -> Generated:
    """What a new engine answers to the prompt, with only the worker to know it from before."""
    with attached_engine(path, worker, engine=engine) as attached:
        attached.wait_attached()
        answer = attached.ask(PROMPT)
        attached.wait_verified()
        return answer


@pytest.fixture(scope="module")
def stored(path: Path, worker: WorkerProcess) -> Generated:
    """The first engine's answer; its blocks stay when it has reset its cache, and when it has gone."""
    with attached_engine(path, worker) as attached:
        attached.wait_attached()
        answer = attached.ask(PROMPT)
        attached.llm.reset_prefix_cache(reset_connector=True)
        attached.wait_verified()
    assert answer.num_cached_tokens == 0
    return answer


def test_blocks_outlive_their_engine(path: Path, worker: WorkerProcess, stored: Generated) -> None:
    again = first_answer(path, worker)
    assert again.num_cached_tokens == WHOLE
    assert again.token_ids == stored.token_ids


def test_other_weights_at_the_same_path_find_nothing(path: Path, worker: WorkerProcess, stored: Generated) -> None:
    write_model(path, replace(TINY, seed=TINY.seed + 1))
    try:
        retrained = first_answer(path, worker)
    finally:
        write_model(path, TINY)
    assert retrained.num_cached_tokens == 0
    assert retrained.token_ids != stored.token_ids


@pytest.mark.parametrize("engine", [{"dtype": "bfloat16"}, {"block_size": 64}], ids=str)
def test_another_dtype_or_block_size_finds_nothing(
    path: Path, worker: WorkerProcess, stored: Generated, engine: dict[str, Any]
) -> None:
    assert first_answer(path, worker, **engine).num_cached_tokens == 0


def test_another_hash_seed_finds_nothing(
    path: Path, worker: WorkerProcess, stored: Generated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert first_answer(path, worker).num_cached_tokens == 0


def test_a_world_that_no_other_engine_has_is_dropped_when_its_cache_is_reset(
    path: Path, worker: WorkerProcess, stored: Generated
) -> None:
    with attached_engine(path, worker, engine={"hf_overrides": unchanged}) as attached:
        attached.wait_attached()
        others = attached.held()
        attached.ask(PROMPT)
        assert len(attached.held()) > len(others)
        attached.llm.reset_prefix_cache(reset_connector=True)
        until(lambda: attached.held() == others, "only the chunks of others")


def test_two_geometries_share_the_pool(
    path: Path, worker: WorkerProcess, stored: Generated, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wider = tmp_path_factory.mktemp("wider")
    write_model(wider, replace(TINY, layers=2, kv_heads=4, seed=3))
    assert first_answer(wider, worker).num_cached_tokens == 0
    assert first_answer(wider, worker).num_cached_tokens == WHOLE
    assert first_answer(path, worker).num_cached_tokens == WHOLE
