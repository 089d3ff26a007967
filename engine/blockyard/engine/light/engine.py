"""The light engine: computes, stores, loses and loads conversations, and says whether the bytes are right.

Owns its blocks and the order of calls to the two clients, which is that of a scheduler step and a rank step. Must
never look into the worker's memory other than through them.
"""

import itertools
import time
from pathlib import Path

import torch

from blockyard.common.errors import BlockyardError
from blockyard.common.messages.attach import GroupShape, Run
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.copies.base import GroupPages, PagedTensor
from blockyard.engine.detached import Detached
from blockyard.engine.identity import EngineIdentity
from blockyard.engine.jobs import BlockRange, CopyJob, CopyResult
from blockyard.engine.light.stalling import StallingCopier
from blockyard.engine.light.world import TOKENS_PER_BLOCK, Geometry, contents_of, hashes_of, keys_of
from blockyard.engine.rank_client import RankClient
from blockyard.engine.scheduler_client import Grant, SchedulerClient

ATTACH_SECONDS = 20.0
JOB_SECONDS = 20.0
GRANT_SECONDS = 10.0
LOOK_SECONDS = 0.4
"""That a lookup may wait for disks and other workers; as much as vLLM's may by default."""
PAUSE = 0.005


class LightEngineFailed(BlockyardError):
    """The engine could not do what it was told."""


class LightEngine:
    """One conversation at a time lies in the blocks from the first block on."""

    def __init__(self, socket: Path, name: str, geometry: Geometry) -> None:
        self._geometry = geometry
        self._tensors = [torch.zeros((geometry.blocks, page), dtype=torch.int8) for page in geometry.pages]
        paged = [PagedTensor(tensor, page) for tensor, page in zip(self._tensors, geometry.pages, strict=True)]
        group = GroupPages(0, paged, geometry.blocks_per_chunk)
        tokens = geometry.blocks_per_chunk * TOKENS_PER_BLOCK
        identity = EngineIdentity(name, f"light-{geometry.name}", geometry.world)
        self.copier = StallingCopier([group])
        shape = GroupShape(0, tokens, group.area_bytes)
        self.rank = RankClient(socket, identity, 0, 1, [shape], self.copier, verify="always")
        self.scheduler = SchedulerClient(socket, identity, [GroupShape(0, tokens, 0)])
        self._jobs = itertools.count(1)

    def start(self) -> None:
        """Attach; raises LightEngineFailed with the reason if that takes too long."""
        self.rank.start()
        self.scheduler.start()
        deadline = time.monotonic() + ATTACH_SECONDS
        while not self.rank.state == self.scheduler.state == "attached":
            if time.monotonic() > deadline:
                raise LightEngineFailed(
                    f"not attached within {ATTACH_SECONDS:g} s: rank: {self.rank.detached_detail or 'attached'}; "
                    f"scheduler: {self.scheduler.detached_detail or 'attached'}"
                )
            time.sleep(PAUSE)

    def close(self) -> None:
        """Detach in good order."""
        self.scheduler.close()
        self.rank.close()

    def compute(self, conversation: str, chunks: int) -> None:
        """Fill blocks with what this conversation's chunks contain."""
        for index, chunk_hash in enumerate(hashes_of(conversation, chunks)):
            for tensor, pages in zip(self._tensors, contents_of(self._geometry, chunk_hash), strict=True):
                tensor[self._rows(index)] = pages

    def lose(self) -> None:
        """Zero every block."""
        for tensor in self._tensors:
            tensor.zero_()

    def wrong_chunks(self, conversation: str, chunks: int) -> int:
        """How many of a conversation's chunks are not bit-exact in the blocks."""
        wrong = 0
        for index, chunk_hash in enumerate(hashes_of(conversation, chunks)):
            expected = contents_of(self._geometry, chunk_hash)
            wrong += not all(
                torch.equal(tensor[self._rows(index)], pages)
                for tensor, pages in zip(self._tensors, expected, strict=True)
            )
        return wrong

    def keys(self, conversation: str, chunks: int) -> list[bytes]:
        """Keys of a conversation's chunks."""
        return keys_of(self._geometry, hashes_of(conversation, chunks))

    def begin_store(self, conversation: str, chunks: int) -> int:
        """Announce and submit a store of what was computed; its job."""
        keys = self.keys(conversation, chunks)
        job = next(self._jobs)
        if not self.scheduler.fill(job, conversation, [self._run(keys)]):
            raise LightEngineFailed(f"cannot store: {self.scheduler.detached_detail}")
        self.rank.submit(CopyJob(job, "store", keys, [self._blocks(index) for index in range(chunks)]))
        return job

    def store(self, conversation: str, chunks: int) -> CopyResult:
        """Store a conversation from end to end."""
        return self._result(self.begin_store(conversation, chunks))

    def load(self, conversation: str, chunks: int) -> tuple[int, CopyResult | None]:
        """Pin what is there of a conversation and load it; hits, and the load if there were any."""
        keys = self.keys(conversation, chunks)
        grant = self._grant(conversation, keys)
        hits = sum(state == KeyState.HIT for state in grant.states)
        if not hits:
            return 0, None
        job = next(self._jobs)
        blocks = [self._blocks(index) for index in range(hits)]
        self.rank.submit(CopyJob(job, "load", keys[:hits], blocks, grant.number))
        result = self._result(job)
        self.scheduler.finish(conversation)
        return hits, result

    def _grant(self, conversation: str, keys: list[bytes]) -> Grant:
        seq = self.scheduler.acquire(conversation, [self._run(keys)], LOOK_SECONDS)
        if seq is None:
            raise LightEngineFailed(f"cannot ask: {self.scheduler.detached_detail}")
        try:
            grant = self.scheduler.grant(seq, GRANT_SECONDS)
        except Detached as trouble:
            raise LightEngineFailed(f"no answer: {trouble}") from None
        if grant is None:
            raise LightEngineFailed(f"no answer within {GRANT_SECONDS:g} s")
        return grant

    def _result(self, job: int) -> CopyResult:
        deadline = time.monotonic() + JOB_SECONDS
        while time.monotonic() < deadline:
            for result in self.rank.finished():
                if result.job == job:
                    return result
            time.sleep(PAUSE)
        raise LightEngineFailed(f"job {job} has not ended within {JOB_SECONDS:g} s")

    def _run(self, keys: list[bytes]) -> Run:
        return Run(0, 0, b"", b"".join(keys))

    def _rows(self, chunk: int) -> slice:
        start = chunk * self._geometry.blocks_per_chunk
        return slice(start, start + self._geometry.blocks_per_chunk)

    def _blocks(self, chunk: int) -> BlockRange:
        rows = self._rows(chunk)
        return BlockRange(list(range(rows.start, rows.stop)))


def count(result: CopyResult, state: CopyState) -> int:
    """Keys of a result that ended in this state."""
    return sum(one is state for one in result.states)
