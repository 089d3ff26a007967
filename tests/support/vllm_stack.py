"""A whole small cluster: etcd, a leader, a worker, and two vLLM servers that share the worker.

Owns the parts, their rough handling, and the questions that the tests put to them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blockyard.cli.demo.processes import Supervisor
from support.etcd_server import EtcdServer
from support.leader_process import LeaderProcess, wait_for
from support.vllm_load import Answers, Load
from support.vllm_servers import Server, start_all, wait_attached
from support.worker_books import check_idle, wait_leader_agrees
from support.worker_process import WorkerProcess

Part = EtcdServer | LeaderProcess | WorkerProcess

NODE = "test-node"
# Holds one of the longer prompts and a part of another, so that most of what is asked again must come from the worker.
GPU_BLOCKS = 128
CHUNK = 256
HITS_S = 60.0


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

    @contextmanager
    def without(self, part: Part) -> Iterator[None]:
        """Killed on entry, started again on exit."""
        part.kill()
        try:
            yield
        finally:
            part.start()

    def load(self, *servers: Server) -> Load:
        """Users on these servers, or on both."""
        return Load(self.answers, *(servers or (self.first, self.second)))

    def repair(self) -> None:
        """Start what an earlier test has left dead, or never started."""
        if not self.worker.alive:
            self.worker.start()
        dead = [server for server in (self.first, self.second) if not server.alive]
        start_all(*dead)
        wait_attached(self.worker, 2)

    def settle(self) -> None:
        """Everything is back, attached, idle, balanced, and known to the leader."""
        wait_attached(self.worker, 2)
        check_idle(self.worker)
        wait_leader_agrees(self.leader, self.worker, NODE)

    def store(self, server: Server, *prompts: list[int]) -> None:
        """Have an engine compute these prompts, with the right answers, and wait until the worker is idle."""
        for tokens in prompts:
            self._check(tokens, server)
        check_idle(self.worker)

    def wait_hits(self, server: Server, *prompts: list[int]) -> None:
        """Every whole chunk of these prompts comes from the worker, and the answers are right.

        Asked again if not: on a busy machine an answer may be late, which is a miss.
        """

        def hits() -> bool:
            answers = server.ask_afresh(*prompts)
            assert not any(self.answers.differs(*pair) for pair in zip(prompts, answers, strict=True))
            return all(
                answer.cached_tokens >= len(tokens) // CHUNK * CHUNK
                for tokens, answer in zip(prompts, answers, strict=True)
            )

        wait_for(hits, HITS_S, "the prompts are found at the worker", lambda: self.worker.get("/metrics")[1])

    def _check(self, tokens: list[int], server: Server) -> None:
        (answer,) = server.ask(tokens)
        assert not self.answers.differs(tokens, answer)


@contextmanager
def running_stack(model: Path, folder: Path) -> Iterator[Stack]:
    with (
        EtcdServer() as etcd,
        LeaderProcess(etcd.endpoint, "a", cluster="test") as leader,
        WorkerProcess(
            spawn_only=True,
            node_id=NODE,
            cluster="test",
            etcd=etcd.endpoint,
            lease_ttl="2s",
            host_pool="256MiB",
            slab_size="32MiB",
            min_slot="1MiB",
            pin_ttl="5s",
            fill_deadline="5s",
        ) as worker,
        Supervisor(folder) as supervisor,
    ):
        first, second = (Server(supervisor, name, model, worker.socket, GPU_BLOCKS) for name in ("first", "second"))
        start_all(first, second)
        yield Stack(etcd, leader, worker, first, second, Answers())
