"""Leaders are killed under a vLLM server that reuses what its worker holds: no request fails, each round of chats is
served from the worker as if nothing had happened, and who leads next soon knows all that the worker holds."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.leader_process import LeaderProcess, wait_for
from support.vllm_load import prompt
from support.vllm_rounds import Rounds, engine_counted
from support.vllm_stack import NODE, Stack
from support.worker_books import wait_leader_agrees
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PATIENCE_S = 40.0


def test_leaders_killed_under_chats_cost_no_hit(settled: Stack) -> None:
    kill_leaders(settled, 3)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_leaders_killed_ten_times_under_chats_cost_no_hit(settled: Stack) -> None:
    kill_leaders(settled, 10)


def kill_leaders(stack: Stack, times: int) -> None:
    etcd, worker = stack.etcd.endpoint, stack.worker
    # With this the engine also tells what it counted before there was a worker.
    stack.store(stack.first, prompt(600, 300))
    before = EngineBooks.of(worker)
    with (
        LeaderProcess(etcd, "b") as second,
        LeaderProcess(etcd, "c") as third,
        Rounds(stack.answers, stack.first, worker) as rounds,
    ):
        leaders = [stack.leader, second, third]
        rounds.wait_whole(1)
        for _ in range(times):
            lose_leader(leaders, worker)
        rounds.wait_whole(1)
    check_rounds(rounds, before, worker)
    # The others are gone.
    stack.leader.wait_leads()
    stack.settle()


def lose_leader(leaders: list[LeaderProcess], worker: WorkerProcess) -> None:
    """Kill the one that leads, wait until another knows what the worker holds, and start it again."""
    old = one_leads(leaders)
    begun = time.monotonic()
    old.kill()
    new = one_leads([leader for leader in leaders if leader is not old])
    whole = time.monotonic() - begun
    wait_leader_agrees(new, worker, NODE)
    took = f"whole {whole:.2f} s, index compared {time.monotonic() - begun:.2f} s after the loss"
    print(f"{old.node} killed, {new.node} leads: {took}")
    old.start()


def check_rounds(rounds: Rounds, before: EngineBooks, worker: WorkerProcess) -> None:
    """Each round is like the first, before any leader was lost; only an answer past its deadline was not used."""
    undisturbed, *disturbed = rounds.books
    print(f"{len(disturbed)} rounds, each {undisturbed}")
    assert rounds.failures == []
    after = EngineBooks.of(worker)
    assert after.detaches == before.detaches, "a machine too busy to run the worker within a second looks like this too"
    assert undisturbed.hit_chunks == undisturbed.acquire_keys > 0
    assert {books.worker for books in disturbed} == {undisturbed.worker}
    assert sum(undisturbed.cached_tokens - books.cached_tokens for books in disturbed) <= after.late - before.late
    wait_for(lambda: EngineBooks.of(worker).unseen <= before.unseen, PATIENCE_S, "the engine has seen each answer")


@dataclass(frozen=True)
class EngineBooks:
    """What the engines have told their worker."""

    late: float
    """Tokens whose answer came past its deadline."""
    detaches: float
    unseen: float
    """Lookups that the worker has answered, and no engine has told that it knows."""

    @staticmethod
    def of(worker: WorkerProcess) -> EngineBooks:
        seen = engine_counted(worker, "acquire_seconds_count")
        return EngineBooks(
            engine_counted(worker, "unanswered_tokens_total"),
            engine_counted(worker, "detaches_total"),
            worker.counted("acquire_requests_total") - seen,
        )


def one_leads(leaders: list[LeaderProcess]) -> LeaderProcess:
    """Wait until one of these leads and has heard from the worker."""

    def found() -> LeaderProcess | None:
        return next((one for one in leaders if (got := one.get("/readyz"))[0] == 200 and not got[1]["partial"]), None)

    return wait_for(found, PATIENCE_S, "one leads", lambda: "".join(one.log()[-1500:] for one in leaders))
