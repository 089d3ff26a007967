"""A process that stands for hundreds of workers: each with its own registration, link and outbox, over one event loop
and one client of etcd.

    python -m scale.generator CONTROL_SOCKET '{"etcd": …}'

It connects to the control socket, says {"ready": …}, and then answers each command with one line. Owns the commands
and when each worker is ticked; must never decide which command comes when. It ends when the control connection does.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop

from blockyard.common.config import WorkerConfig, parse_address
from blockyard.common.etcd.client import EtcdClient
from blockyard.common.logs import set_up
from blockyard.worker.health import Health
from blockyard.worker.leader_finder import LeaderFinder
from blockyard.worker.leader_link import Identity
from blockyard.worker.registration import Registration
from scale.churn import Churn
from scale.generated_worker import GeneratedWorker, Sent
from scale.keys import Popularity

_SLICE_SECONDS = 0.005
"""How long ticks may keep the loop from its sockets."""
_TCP_INFO = struct.Struct("<8B24I4Q")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one process stands for."""

    etcd: str
    cluster: str
    name: str
    first: int
    workers: int
    chunks: int
    """Of each worker."""
    shared: int
    share: float
    exponent: float
    seed: int
    lease_ttl: int
    interval: float


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """`do` is one of `link`, `rate`, `state`, `wire`, `probe`, `told`, `held` and `chains`."""

    do: str
    rate: float = 0.0
    worker: int = 0
    key: str = ""


class Generator:
    """All workers of this process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._sent = Sent()
        self._lag = 0.0
        self._linking: asyncio.Event = asyncio.Event()
        popularity = Popularity.zipf(task.shared, task.share, task.exponent)
        self.workers = [self._worker(number, popularity) for number in range(task.first, task.first + task.workers)]

    def _worker(self, number: int, popularity: Popularity) -> GeneratedWorker:
        task = self._task
        churn = Churn(number, task.chunks, popularity, task.seed)
        churn.fill()
        identity = Identity(task.cluster, f"{task.name}-{number:04}", number.to_bytes(16, "big"), "generated")
        return GeneratedWorker(identity, churn, self._sent, task.interval)

    async def run(self) -> None:
        """Register and link once told so; tick, until cancelled."""
        await self._linking.wait()
        async with EtcdClient([self._task.etcd]) as client, asyncio.TaskGroup() as tasks:
            prefix = f"/blockyard/{self._task.cluster}"
            finder = LeaderFinder(client, prefix, Health(), self._found)
            tasks.create_task(finder.run())
            for worker in self.workers:
                worker.link.doubt = finder.doubt
                tasks.create_task(self._registration(client, prefix, worker).run())
                tasks.create_task(worker.link.run())
            tasks.create_task(self._tick())

    def _found(self, leader: Any) -> None:
        for worker in self.workers:
            worker.link.follow(leader)

    def _registration(self, client: EtcdClient, prefix: str, worker: GeneratedWorker) -> Registration:
        config = WorkerConfig(
            cluster=self._task.cluster,
            node_id=worker.identity.node,
            etcd=(parse_address(self._task.etcd),),
            insecure=True,
            lease_ttl=float(self._task.lease_ttl),
        )
        return Registration(
            client, prefix, config, worker.identity, "", "", Health(), lambda: True, worker.link.incarnate
        )

    async def _tick(self) -> None:
        """Each worker every `interval`, counted from its last tick; all of them spread over the interval."""
        interval = self._task.interval
        begun = time.monotonic()
        due = deque((begun + interval * place / len(self.workers), worker) for place, worker in enumerate(self.workers))
        while True:
            begun = now = time.monotonic()
            while due[0][0] <= now and now - begun < _SLICE_SECONDS:
                at, worker = due.popleft()
                self._lag = max(self._lag, now - at)
                worker.tick(now)
                due.append((now + interval, worker))
                now = time.monotonic()
            await asyncio.sleep(max(0.0, due[0][0] - now))

    def obey(self, command: Command) -> dict[str, Any]:
        """Carry out one command."""
        commands: dict[str, Callable[[Command], dict[str, Any]]] = {
            "link": self._link,
            "rate": self._rate,
            "state": self._state,
            "wire": self._wire,
            "probe": self._probe,
            "told": self._told,
            "held": self._held,
            "chains": self._chains,
        }
        return commands[command.do](command)

    def _link(self, command: Command) -> dict[str, Any]:
        self._linking.set()
        return {}

    def _rate(self, command: Command) -> dict[str, Any]:
        for worker in self.workers:
            worker.rate = command.rate
        return {}

    def _state(self, command: Command) -> dict[str, Any]:
        lag, self._lag = self._lag, 0.0
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "at": time.monotonic(),
            "workers": len(self.workers),
            "linked": sum(worker.outbox.linked for worker in self.workers),
            "settled": sum(worker.outbox.settled for worker in self.workers),
            "held": sum(worker.churn.held for worker in self.workers),
            "depth": sum(worker.outbox.depth for worker in self.workers),
            "tick_lag": lag,
            "cpu": usage.ru_utime + usage.ru_stime,
            **msgspec.to_builtins(self._sent),
        }

    def _wire(self, command: Command) -> dict[str, Any]:
        carried = [_link_bytes(worker) for worker in self.workers]
        return {"bytes_out": sum(out for out, _ in carried), "bytes_in": sum(back for _, back in carried)}

    def _probe(self, command: Command) -> dict[str, Any]:
        worker = self.workers[command.worker % len(self.workers)]
        at = time.monotonic()
        return {"key": worker.begin_own().hex(), "node": worker.identity.node, "at": at}

    def _told(self, command: Command) -> dict[str, Any]:
        worker = self.workers[command.worker % len(self.workers)]
        return {"at": worker.told_at(bytes.fromhex(command.key))}

    def _held(self, command: Command) -> dict[str, Any]:
        return {"held": {worker.identity.node: worker.churn.held for worker in self.workers}}

    def _chains(self, command: Command) -> dict[str, Any]:
        worker = self.workers[command.worker % len(self.workers)]
        return {"node": worker.identity.node, "chains": list(worker.churn.chains().items())}


def _link_bytes(worker: GeneratedWorker) -> tuple[int, int]:
    """Bytes that the leader's side has acknowledged and those that came from it, on the link that stands now."""
    connection = worker.link._connection
    transport = connection._transport if connection is not None and connection.open else None
    if transport is None:
        return 0, 0
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as duplicate:
        told = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    acknowledged, received = _TCP_INFO.unpack(told)[-2:]
    return acknowledged, received


async def serve(control: str, task: Task) -> None:
    """Obey until the control connection ends."""
    reader, writer = await asyncio.open_unix_connection(control)
    generator = Generator(task)
    writer.write(b'{"ready": true}\n')
    run = asyncio.create_task(generator.run())
    try:
        while line := await reader.readline():
            if run.done():
                break
            answer = generator.obey(msgspec.json.decode(line, type=Command))
            writer.write(json.dumps(answer).encode() + b"\n")
    finally:
        writer.close()
        if run.done():
            await run
        run.cancel()


def main(control: str, task: str) -> int:
    """Be the workers of this task."""
    set_up("error", "generator")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(control, msgspec.json.decode(task, type=Task)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
