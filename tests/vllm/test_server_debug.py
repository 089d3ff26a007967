"""Two vLLM servers on one worker, while parts of Blockyard die: no request fails, and what was kept is found again.

Each test leaves all parts running, attached and idle. Engines are never restarted here, and never told anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.cli.demo.processes import Supervisor
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess
from support.vllm_load import Answers, Load, prompt
from support.vllm_servers import Server, start_all, wait_attached
from support.worker_books import check_idle, wait_leader_agrees
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

Part = EtcdServer | LeaderProcess | WorkerProcess

NODE = "test-node"
GPU_BLOCKS = 128
PROMPTS = [prompt(seed, 1100) for seed in (501, 502)]
HITS = [1024, 1024]
AWAY_S = 4.0


@dataclass
class Stack:
    """All parts; the worker is not started at first."""

    etcd: EtcdServer
    leader: LeaderProcess
    worker: WorkerProcess
    first: Server
    second: Server
    answers: Answers

    def part(self, name: str) -> Part:
        parts: dict[str, Part] = {"etcd": self.etcd, "leader": self.leader, "worker": self.worker}
        return parts[name]

    def load(self) -> Load:
        return Load(self.answers, self.first, self.second)

    def settle(self) -> None:
        """Everything is back, attached, idle, balanced, and known to the leader."""
        wait_attached(self.worker, 2)
        check_idle(self.worker)
        wait_leader_agrees(self.leader, self.worker, NODE)

    def store(self, prompts: list[list[int]]) -> None:
        """Have the first engine store these prompts, and know the right answers."""
        for tokens in prompts:
            (answer,) = self.first.ask(tokens)
            assert not self.answers.differs(tokens, answer)
        check_idle(self.worker)

    def hits(self, server: Server, prompts: list[list[int]]) -> list[int]:
        """Tokens that come from the worker, prompt by prompt; the answers must be right."""
        answers = server.ask_afresh(*prompts)
        assert not any(self.answers.differs(*pair) for pair in zip(prompts, answers, strict=True))
        return [answer.cached_tokens for answer in answers]


@pytest.fixture(scope="module")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with (
        EtcdServer() as etcd,
        LeaderProcess(etcd.endpoint, "a", cluster="test") as leader,
        WorkerProcess(
            spawn_only=True,
            cluster="test",
            etcd=etcd.endpoint,
            lease_ttl="2s",
            host_pool="256MiB",
            slab_size="32MiB",
            pin_ttl="5s",
            fill_deadline="5s",
        ) as worker,
        Supervisor(tmp_path_factory.mktemp("servers")) as supervisor,
    ):
        servers = [Server(supervisor, name, model, worker.socket, GPU_BLOCKS) for name in ("first", "second")]
        start_all(*servers)
        yield Stack(etcd, leader, worker, *servers, Answers())


@pytest.fixture
def settled(stack: Stack) -> Stack:
    """For a test that is run alone: the worker is there."""
    if not stack.worker.alive:
        stack.worker.start()
        wait_attached(stack.worker, 2)
    return stack


def test_engines_serve_without_a_worker_and_attach_when_one_comes(stack: Stack) -> None:
    with Load(stack.answers, stack.first, rounds=1) as detached:
        pass
    assert detached.failures == []
    stack.worker.start()
    wait_attached(stack.worker, 2)
    with stack.load() as attached:
        attached.wait_answers(20)
    assert attached.failures == []
    assert stack.worker.metric("hit_chunks_total") > 0
    stack.settle()


def test_an_engine_hits_what_another_has_stored(settled: Stack) -> None:
    settled.store(PROMPTS)
    assert settled.hits(settled.second, PROMPTS) == HITS


@pytest.mark.parametrize("name", ["leader", "etcd"])
def test_without_a_cluster_the_local_hits_are_the_same(settled: Stack, name: str) -> None:
    part, fresh = settled.part(name), [prompt(len(name), 1100)]
    settled.store(PROMPTS)
    part.kill()
    try:
        assert settled.hits(settled.second, PROMPTS) == HITS
        settled.store(fresh)
        assert settled.hits(settled.second, fresh) == [1024]
    finally:
        part.start()
    settled.settle()


def test_a_worker_killed_while_idle_is_attached_again(settled: Stack) -> None:
    settled.store(PROMPTS)
    settled.worker.kill()
    assert settled.hits(settled.first, PROMPTS) == [0, 0]
    settled.worker.start()
    wait_attached(settled.worker, 2)
    assert settled.hits(settled.first, PROMPTS) == [0, 0]
    check_idle(settled.worker)
    assert settled.hits(settled.second, PROMPTS) == HITS
    settled.settle()


@pytest.mark.parametrize("name", ["worker", "leader", "etcd"])
def test_killed_under_load_no_request_notices(settled: Stack, name: str) -> None:
    kill_under_load(settled, settled.part(name), times=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["worker", "leader", "etcd"])
def test_killed_again_and_again_under_load_no_request_notices(settled: Stack, name: str) -> None:
    kill_under_load(settled, settled.part(name), times=5)


def kill_under_load(stack: Stack, part: Part, times: int) -> None:
    with stack.load() as load:
        load.wait_answers(4)
        for _ in range(times):
            part.kill()
            load.wait_answers(4)
            part.start()
            wait_attached(stack.worker, 2)
            load.wait_answers(4)
    assert load.failures == []
    stack.settle()
    stack.store(PROMPTS)
    assert stack.hits(stack.second, PROMPTS) == HITS


def test_a_frozen_worker_holds_nobody_up_and_is_used_again_when_it_thaws(settled: Stack) -> None:
    with settled.load() as load:
        load.wait_answers(4)
        settled.worker.freeze()
        try:
            time.sleep(AWAY_S)
            load.wait_answers(4)
        finally:
            settled.worker.thaw()
        wait_attached(settled.worker, 2)
        load.wait_answers(4)
    assert load.failures == []
    settled.settle()
    settled.store(PROMPTS)
    assert settled.hits(settled.second, PROMPTS) == HITS
    print("never")


@pytest.fixture(autouse=True)
def tell(stack: Stack):
    yield
    print(f"NOW {time.time()}")
    print("WORKER\n" + stack.worker.log[-6000:])
    for s in (stack.first, stack.second):
        print("SERVER\n" + "\n".join(l for l in s.log().splitlines() if "lockyard" in l)[-5000:])
    print(stack.worker.get("/metrics")[1])
