"""vLLM's own `/metrics` tells what came of hits, of failed loads and of a lost worker, once it has happened.

Scheduler, rank and API server are three processes: the numbers travel through all of them.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.common.metrics.engine import OUTCOME
from support.engine_series import Series, scraped
from support.host_pool import OpenedPool
from support.leader_process import wait_for
from support.vllm_load import prompt
from support.vllm_servers import Server, wait_attached
from support.vllm_stack import CHUNK, Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PATIENCE_S = 60.0
PROMPT = prompt(811, 1100)
CHUNKS = 1100 // CHUNK
WHOLE = CHUNKS * CHUNK


def test_hits_failed_loads_and_a_lost_worker_show_at_vllm(settled: Stack) -> None:
    server = settled.second
    settled.store(settled.first, PROMPT)
    ask(settled, server, prompt(812, 300))
    scrapes = [idle(server)]
    check_a_hit(settled, server, scrapes)
    check_a_failed_load(settled, server, scrapes)
    check_a_lost_worker(settled, server, scrapes)
    for before, after in pairwise(scrapes):
        assert after.fallen(before) == []
    assert "vllm:kv_offload" not in scrapes[-1].text
    assert scrapes[-1].text.count("blockyard_engine_stores_total{") == len(OUTCOME.values)
    settled.settle()


def check_a_hit(stack: Stack, server: Server, scrapes: list[Series]) -> None:
    before, moved = scrapes[-1], stack.worker.metric("copy_bytes_total", leg="host_to_gpu")
    assert before.get("attached") == 1
    stack.wait_hits(server, PROMPT)
    after = idle(server)
    loads = after.since(before, "loaded_tokens_total") / WHOLE
    assert loads >= 1 and loads == int(loads)
    assert after.since(before, "hit_tokens_total") == loads * WHOLE
    assert after.since(before, "loads_total", "ok") == loads * CHUNKS
    assert (
        after.since(before, "copied_bytes_total", "host_to_gpu")
        == stack.worker.metric("copy_bytes_total", leg="host_to_gpu") - moved
        > 0
    )
    assert after.since(before, "copy_seconds_total", "host_to_gpu") > 0
    assert after.since(before, "acquire_seconds_count") > 0
    scrapes.append(after)


def check_a_failed_load(stack: Stack, server: Server, scrapes: list[Series]) -> None:
    before = scrapes[-1]
    spoil(stack)

    def failed() -> bool:
        ask(stack, server, PROMPT)
        return idle(server).since(before, "load_failures_total", "corrupt") > 0

    wait_for(failed, PATIENCE_S, "a load fails", lambda: stack.worker.log)
    after = idle(server)
    assert after.since(before, "recomputed_tokens_total", "corrupt") == WHOLE
    assert after.since(before, "loaded_tokens_total") == 0
    assert after.since(before, "loads_total", "corrupt") == CHUNKS
    assert after.since(before, "copied_bytes_total", "host_to_gpu") == 0
    # What was computed instead is stored in place of what was spoiled.
    assert after.since(before, "stores_total", "ok") == CHUNKS
    assert after.since(before, "copied_bytes_total", "gpu_to_host") > 0
    scrapes.append(after)


def check_a_lost_worker(stack: Stack, server: Server, scrapes: list[Series]) -> None:
    before = scrapes[-1]
    with stack.without(stack.worker):
        ask(stack, server, PROMPT)
        after = idle(server)
        assert after.get("attached") == 0
        assert after.labels("detached") == {"no-worker": 1}
        assert after.since(before, "detaches_total", "no-worker") >= 1
        assert after.since(before, "unanswered_tokens_total", "disabled") == WHOLE
        assert after.since(before, "loaded_tokens_total") == 0
        scrapes.append(after)
    wait_attached(stack.worker, 2)
    ask(stack, server, PROMPT)
    again = idle(server)
    assert again.get("attached") == 1
    assert again.labels("detached") == {}
    scrapes.append(again)


def ask(stack: Stack, server: Server, tokens: list[int]) -> None:
    (answer,) = server.ask_afresh(tokens)
    assert not stack.answers.differs(tokens, answer)


def idle(server: Server) -> Series:
    """The numbers when no transfer is under way: stores end after the answer."""

    def found() -> Series | None:
        series = scraped(server.url)
        return None if series.labels("pending_copies") else series

    return wait_for(found, PATIENCE_S, "no transfer is under way")


def spoil(stack: Stack) -> None:
    """Change a byte of each page of each chunk that the worker holds."""
    stack.worker.wait_metric("checksum_backlog", 0)
    with OpenedPool(stack.worker.pid) as pool:
        for record in pool.ready():
            for page in range(0, record.area_bytes, 4096):
                pool.flip(record, page + 1)
