"""An engine as a worker sees it: torch tensors for GPU blocks, one rank client, one scheduler client.

Owns what every test of the attachment needs: patterns in blocks, a store and a load from end to end.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from blockyard.common.identity import fingerprint
from blockyard.common.messages.attach import GroupShape, Run
from blockyard.common.messages.states import KeyState
from blockyard.engine.copies.base import GroupPages, PagedTensor
from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.identity import EngineIdentity
from blockyard.engine.jobs import BlockRange, CopyJob, CopyResult
from blockyard.engine.rank_client import RankClient, Verify
from blockyard.engine.scheduler_client import Grant, SchedulerClient
from support.closing import Closing

PATIENCE = 20.0
WORLD = fingerprint({"model": "test"})

_engines = itertools.count(1)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until true, or fail saying what was awaited."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


def key_of(number: int) -> bytes:
    """A key that names chunk `number`."""
    return number.to_bytes(32, "big")


def pages(num_blocks: int, page_bytes: int, row_bytes: int | None = None) -> PagedTensor:
    """A tensor of random bytes, rows possibly wider than the page."""
    raw = torch.randint(-128, 128, (num_blocks, row_bytes or page_bytes), dtype=torch.int8)
    return PagedTensor(raw, page_bytes)


def bytes_of(tensors: Sequence[PagedTensor], block: int) -> list[bytes]:
    """The pages of one block."""
    return [bytes(paged.tensor[block, : paged.page_bytes].numpy()) for paged in tensors]


class EngineSide(Closing):
    """`with EngineSide(socket) as engine:` starts both clients, or one; it does not wait for them to attach."""

    def __init__(
        self,
        socket: Path,
        tensors: Sequence[PagedTensor] | None = None,
        *,
        blocks_per_chunk: int = 4,
        verify: Verify = "off",
        world: bytes = WORLD,
        rank: int = 0,
        local_ranks: int = 1,
        name: str | None = None,
        with_scheduler: bool = True,
        with_rank: bool = True,
        copier: type[CpuCopier] = CpuCopier,
    ) -> None:
        self.tensors = list(tensors or [pages(64, 4096), pages(64, 4096)])
        self.blocks_per_chunk = blocks_per_chunk
        group = GroupPages(0, self.tensors, blocks_per_chunk)
        self.copier = copier([group])
        identity = EngineIdentity(name or f"engine-{next(_engines)}", "model", world)
        tokens = 16 * blocks_per_chunk
        self.rank = RankClient(
            socket,
            identity,
            rank,
            local_ranks,
            [GroupShape(0, tokens, group.area_bytes)],
            self.copier,
            verify,
        )
        self.scheduler = SchedulerClient(socket, identity, [GroupShape(0, tokens, 0)], local_ranks)
        self._with_scheduler = with_scheduler
        self._with_rank = with_rank
        self._jobs = itertools.count(1)

    def __enter__(self) -> EngineSide:
        if self._with_rank:
            self.rank.start()
        if self._with_scheduler:
            self.scheduler.start()
        return self

    def close(self) -> None:
        self.scheduler.close()
        assert self.rank.close(), "a copy does not end"

    def wait_attached(self) -> EngineSide:
        wait_until(
            lambda: self.rank.state == self.scheduler.state == "attached",
            f"attached; {self.rank.detached_detail}; {self.scheduler.detached_detail}",
        )
        return self

    def wait_detached(self) -> None:
        wait_until(lambda: self.rank.state == self.scheduler.state == "detached", "detached")

    def run(self, keys: Sequence[bytes], prefix: bool = True) -> Run:
        return Run(0, 0, b"", b"".join(keys), prefix)

    def chunk(self, index: int, first_page: int = 0) -> BlockRange:
        """The blocks of the engine's `index`-th chunk, without those before `first_page`."""
        start = index * self.blocks_per_chunk
        return BlockRange(list(range(start + first_page, start + self.blocks_per_chunk)), first_page)

    def content(self, index: int) -> list[list[bytes]]:
        """All pages of the engine's `index`-th chunk."""
        return [bytes_of(self.tensors, block) for block in self.chunk(index).block_ids]

    def write(self, index: int, key: bytes) -> None:
        """Fill the engine's `index`-th chunk with what belongs to a key, the same in every engine."""
        draw = torch.Generator().manual_seed(int.from_bytes(key, "big"))
        for paged in self.tensors:
            for block in self.chunk(index).block_ids:
                row = paged.tensor[block]
                row.copy_(torch.randint(-128, 128, row.shape, dtype=row.dtype, generator=draw))

    def holds(self, index: int, key: bytes) -> bool:
        """Whether the `index`-th chunk is what belongs to a key; it is afterwards."""
        found = self.content(index)
        self.write(index, key)
        return found == self.content(index)

    def zero(self) -> None:
        """Lose every block. Through numpy: torch's threads wait for each other long where others use the CPUs too."""
        for paged in self.tensors:
            paged.tensor.numpy().fill(0)

    def submit_store(self, keys: Sequence[bytes], blocks: list[BlockRange]) -> int:
        job = next(self._jobs)
        self.scheduler.fill(job, f"request-{job}", [self.run(keys)])
        self.rank.submit(CopyJob(job, "store", list(keys), blocks))
        return job

    def submit_load(self, keys: Sequence[bytes], blocks: list[BlockRange], grant: int) -> int:
        job = next(self._jobs)
        self.rank.submit(CopyJob(job, "load", list(keys), blocks, grant))
        return job

    def result(self) -> CopyResult:
        """The next result; there must be exactly one."""
        found: list[CopyResult] = []
        wait_until(lambda: found.extend(self.rank.finished()) or found, "a result")
        assert len(found) == 1
        return found[0]

    def store(self, keys: Sequence[bytes], blocks: list[BlockRange] | None = None) -> CopyResult:
        self.submit_store(keys, blocks or [self.chunk(index) for index in range(len(keys))])
        return self.result()

    def ask(self, keys: Sequence[bytes], wait: float = 0.0, prefix: bool = True) -> Grant:
        """Acquire and wait for the answer; an engine would go on with its step instead."""
        seq = self.scheduler.acquire("request", [self.run(keys, prefix)], wait)
        assert seq is not None, self.scheduler.detached_detail
        found: list[Grant] = []
        wait_until(lambda: found.append(grant) or found if (grant := self._grant(seq)) else None, "a grant")
        return found[0]

    def _grant(self, seq: int) -> Grant | None:
        return self.scheduler.grant(seq, 0.05)

    def ask_until_hit(self, keys: Sequence[bytes]) -> Grant:
        """Acquire until all are hits: another engine's chunk is one only once its checksum stands."""
        grants: list[Grant] = []

        def all_hit() -> bool:
            grant = self.ask(keys, wait=0.5)
            if any(grant.states):
                self.scheduler.release(grant)
                return False
            grants.append(grant)
            return True

        wait_until(all_hit, "every key is a hit")
        return grants[-1]

    def load(self, keys: Sequence[bytes], blocks: list[BlockRange] | None = None) -> CopyResult:
        grant = self.ask_until_hit(keys)
        self.submit_load(keys, blocks or [self.chunk(index) for index in range(len(keys))], grant.number)
        result = self.result()
        self.scheduler.release(grant)
        return result


def states(grant: Grant) -> list[KeyState]:
    """A grant's answers by name."""
    return [KeyState(code) for code in grant.states]
