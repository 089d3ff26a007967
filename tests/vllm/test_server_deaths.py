"""A process of one vLLM engine is killed: the other engine goes on, the books balance, and a restart hits again.

A rank that is stopped in the middle of a copy may write into the pool at any time until it is gone, whatever has
become of its scheduler: until then its slots must not be used for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.cli.demo.chat_client import Completion, RequestFailed
from blockyard.common.slot_table import SlotState
from support.leader_process import wait_for
from support.unread import unread_from
from support.vllm_load import prompt
from support.vllm_servers import Server, start_all, wait_attached
from support.vllm_stack import CHUNK, Stack
from support.worker_books import check_idle, slots_by_key

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

PROMPTS = [prompt(seed, 1100) for seed in (601, 602)]
WAIT_S = 60.0
POOL_CHUNKS = 64
FREEZES = 400
STORE_BYTES = 7 * 32
"""The keys of the seven chunks that a rank asks for. It also sends numbers now and then, which are shorter."""


@pytest.fixture
def victim(settled: Stack) -> Iterator[Server]:
    """The first server; whatever a test did to it, no process of it is left frozen."""
    yield settled.first
    settled.first.end()


def killed(kill: Callable[[], None], stack: Stack, victim: Server) -> None:
    """Kill under load of both engines, start the victim again, and look at everything."""
    stack.store(stack.second, *PROMPTS)
    with stack.load(stack.second) as spared:
        with stack.load(victim) as lost:
            lost.wait_answers(4)
            kill()
            spared.wait_answers(6)
            victim.wait_gone()
        wait_attached(stack.worker, 1)
    assert spared.failures == []
    assert all("other tokens" not in failure for failure in lost.failures)
    check_comes_back(stack, victim)


def check_comes_back(stack: Stack, victim: Server) -> None:
    check_idle(stack.worker)
    start_all(victim)
    stack.settle()
    stack.second.ask_afresh(*PROMPTS)
    stack.wait_hits(victim, *PROMPTS)


def test_rank_killed_under_load(settled: Stack, victim: Server) -> None:
    killed(victim.kill_rank, settled, victim)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("process", ["scheduler", "rank"])
def test_killed_again_and_again_under_load(settled: Stack, victim: Server, process: str) -> None:
    for _ in range(5):
        killed(victim.kill_scheduler if process == "scheduler" else victim.kill_rank, settled, victim)


@pytest.mark.long
@pytest.mark.parametrize("process", ["scheduler", "rank"])
def test_killed_while_idle(settled: Stack, victim: Server, process: str) -> None:
    settled.store(settled.second, *PROMPTS)
    (victim.kill_scheduler if process == "scheduler" else victim.kill_rank)()
    victim.wait_gone()
    wait_attached(settled.worker, 1)
    settled.wait_hits(settled.second, *PROMPTS)
    check_comes_back(settled, victim)


def test_slots_that_a_rank_may_still_fill_are_not_used_after_its_scheduler_was_killed(
    settled: Stack, victim: Server
) -> None:
    worker = settled.worker
    looked_up = worker.metric("acquire_requests_total")
    with asking(victim, prompt(603, 1900)) as request:
        wait_for(lambda: worker.metric("acquire_requests_total") > looked_up, WAIT_S, "the request is looked up")
        hold_in_a_store(settled, victim)
        victim.kill_scheduler()
        wait_for(lambda: worker.metric("slots", state="doomed") > 0, WAIT_S, "slots are doomed")
        worker.wait_metric("slots", 0, state="filling")
        doomed = slots_by_key(worker, SlotState.DOOMED)
        with settled.load(settled.second) as spared:
            turn_over(settled, chunks=8)
        assert spared.failures == []
        assert slots_by_key(worker, SlotState.DOOMED).items() >= doomed.items()
        worker.wait_metric("slots", len(doomed), state="doomed")
        victim.kill_rank()
    assert isinstance(request.exception(), RequestFailed)
    victim.wait_gone()
    check_comes_back(settled, victim)


@pytest.mark.long
def test_slots_that_a_rank_still_reads_are_not_used_after_its_scheduler_was_killed(
    settled: Stack, victim: Server
) -> None:
    worker, tokens = settled.worker, prompt(604, 8 * CHUNK)
    before = slots_by_key(worker, SlotState.READY)
    settled.store(settled.second, tokens)
    stored = {k: v for k, v in slots_by_key(worker, SlotState.READY).items() if k not in before}
    with asking_again(victim, tokens):
        held = hold_in_a_load(settled, victim)
        victim.kill_scheduler()
        worker.wait_metric("pins", 0)
        turn_over(settled, chunks=POOL_CHUNKS)
        assert worker.metric("loads_in_flight") == held
        kept = slots_by_key(worker, SlotState.READY).items() & stored.items()
        assert len(kept) >= held
        victim.kill_rank()
    victim.wait_gone()
    check_comes_back(settled, victim)


@contextmanager
def asking(server: Server, tokens: list[int]) -> Iterator[Future[list[Completion]]]:
    """One request in the background."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(server.ask, tokens, tokens=200)


@contextmanager
def asking_again(server: Server, tokens: list[int]) -> Iterator[None]:
    """The same request over and over, each time loaded from the worker, until the server fails."""

    def ask() -> None:
        try:
            while True:
                server.ask_afresh(tokens, tokens=1)
        except RequestFailed:
            return

    with ThreadPoolExecutor(1) as thread:
        thread.submit(ask)
        yield


def hold_in_a_store(stack: Stack, server: Server) -> None:
    """Stop the rank of the one engine at work where it counts as copying into the pool.

    Precondition: the worker has answered the request's lookup. It is stopped; when the rank's question where to store
    waits for it, after the scheduler's word on what, the rank is stopped too; then the worker goes on, and gives out
    the slots.
    """
    worker, rank = stack.worker.pid, server.rank_pid
    stack.worker.freeze()
    try:
        wait_for(lambda: unread_from(worker, rank) > STORE_BYTES, WAIT_S, "a store waits for the worker")
        server.freeze_rank()
    finally:
        stack.worker.thaw()
    wait_for(lambda: stack.worker.metric("fills_in_flight") > 0, WAIT_S, "a store is under way")


def hold_in_a_load(stack: Stack, server: Server) -> int:
    """Stop the rank in the middle of a load, which takes some tries; how many chunks it was loading."""
    for _ in range(FREEZES):
        server.freeze_rank()
        if stack.worker.metric("loads_in_flight") and (held := int(stack.worker.metric("loads_in_flight"))):
            return held
        server.thaw_rank()
    raise AssertionError(f"the rank was not loading in any of {FREEZES} moments")


def turn_over(stack: Stack, chunks: int) -> None:
    """Have the second engine store until so many chunks had to make room."""
    before = stack.worker.metric("evictions_total")
    for seed in range(700, 800):
        if stack.worker.metric("evictions_total") - before >= chunks:
            return
        stack.second.ask(prompt(seed, 1900), tokens=2)
    raise AssertionError("the pool is never full")
