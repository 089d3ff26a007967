"""Tests that need an engine of their own: without verification, and without a worker at its start."""

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import CHUNK, attached_engine, prompt
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PROMPT = prompt(1, 1500)
WHOLE = 1500 // CHUNK * CHUNK


def test_a_spoiled_byte_changes_the_tokens_where_nothing_is_verified(model: Path) -> None:
    """The control of the tests with verification: this model and this prompt do show a wrong byte."""
    with (
        WorkerProcess(host_pool="128MiB", slab_size="32MiB") as worker,
        attached_engine(model, worker, verify_host="off") as engine,
    ):
        engine.wait_attached()
        right = engine.ask(PROMPT)
        assert engine.ask_afresh(PROMPT).token_ids == right.token_ids
        assert engine.spoil() == WHOLE // CHUNK
        wrong = engine.ask_afresh(PROMPT)
        assert wrong.num_cached_tokens == WHOLE
        assert wrong.token_ids != right.token_ids


def test_no_worker_at_start_then_one_comes(model: Path) -> None:
    with (
        WorkerProcess(spawn_only=True, host_pool="128MiB", slab_size="32MiB") as worker,
        attached_engine(model, worker) as engine,
    ):
        right = engine.ask(PROMPT)
        assert engine.ask_afresh(PROMPT).num_cached_tokens == 0
        worker.start()
        engine.wait_attached()
        engine.ask_afresh(PROMPT)
        again = engine.ask_afresh(PROMPT)
        assert again.num_cached_tokens == WHOLE
        assert again.token_ids == right.token_ids
