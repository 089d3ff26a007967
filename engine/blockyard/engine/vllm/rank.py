"""The rank-side half: vLLM's OffloadingWorker on a RankClient.

Owns which GPU pages belong to which chunk, and the books of what failed. Reports success of every transfer to vLLM,
which asserts it, and names the blocks that did not arrive apart; both only once the copy has ended.
"""

import logging
import time
from collections.abc import Sequence

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    OffloadKey,
    TransferResult,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from blockyard.common.messages.attach import GroupShape
from blockyard.common.messages.states import CopyState
from blockyard.engine.copies.base import DeviceCopier, GroupPages, LayoutRefused, PagedTensor
from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.copies.cuda import CudaCopier
from blockyard.engine.jobs import BlockRange, CopyJob, CopyKind, CopyResult
from blockyard.engine.rank_client import RankClient
from blockyard.engine.vllm.groups import CacheGroup, resumes_at_the_failure
from blockyard.engine.vllm.metrics.tally import Tally
from blockyard.engine.vllm.setup import EngineSetup
from blockyard.engine.vllm.specs import ChunkSpec, FailedLoad
from blockyard.engine.vllm.weights_watch import WeightsWatch

logger = logging.getLogger(__name__)

FLUSH_PATIENCE = 0.1
"""Seconds that stores may go on when vLLM wants their blocks back; then what has not begun is dropped."""

FLUSH_POLL = 0.0005

LONGEST_PATIENCE = 10.0

IDLE_PATIENCE = 0.010
"""Seconds that a step without computation may wait for a load: what a new request may wait for its turn."""


class BlockyardRank(OffloadingWorker):
    """One rank's transfers."""

    def __init__(self, setup: EngineSetup, config: OffloadingConfig, kv_caches: CanonicalKVCaches) -> None:
        self._groups = setup.groups
        self._resumes = resumes_at_the_failure(setup.groups)
        self._jobs: dict[int, tuple[int, ChunkSpec, list[BlockRange]]] = {}
        self.tally = Tally()
        self._loads = 0
        self._done: list[TransferResult] = []
        self._failed_blocks: set[int] = set()
        self._failed_loads: dict[int, FailedLoad] = {}
        self._client = self._start(setup, config, kv_caches)
        harmless = frozenset(setup.settings.harmless_calls)
        self.weights = WeightsWatch(config.parallel.rank, self._end_copies, harmless)

    def _start(self, setup: EngineSetup, config: OffloadingConfig, kv_caches: CanonicalKVCaches) -> RankClient | None:
        try:
            pages = [
                GroupPages(group.number, _tensors(kv_caches, place), group.blocks_per_chunk)
                for place, group in enumerate(setup.groups)
            ]
            copier = _copier(pages)
        except LayoutRefused as error:
            logger.warning("Blockyard: serving detached, without Blockyard: layout: %s", error)
            return None
        client = RankClient(
            setup.settings.socket,
            setup.identity,
            rank=config.parallel.rank,
            local_ranks=config.parallel.world_size,
            shapes=[
                GroupShape(group.number, group.chunk_tokens, copier.area_bytes(group.number)) for group in setup.groups
            ],
            copier=copier,
            verify=setup.settings.verify_host,
        )
        client.start()
        return client

    # vLLM's interface.

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Begin a store; vLLM asserts success, so trouble shows in the result's books only."""
        assert isinstance(dst_spec, ChunkSpec)
        self._submit("store", job_id, dst_spec, list(dst_spec.blocks))
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Begin a load; blocks that do not arrive are named by `take_failed_blocks` when it has ended."""
        assert isinstance(src_spec, ChunkSpec)
        self._loads += 1
        blocks = blocks_of_load(dst_spec, src_spec.offload_keys, self._groups)
        if blocks is None and self._resumes:
            self._failed_blocks.update(int(block) for block in dst_spec.block_ids)
        self._submit("load", job_id, src_spec, blocks)
        return True

    def idle_step(self) -> None:
        """The step that ends computes nothing: give the copies the time that vLLM would spend on asking again.

        Only loads are worth it: a request waits for them.
        """
        if self._loads:
            self._collect(IDLE_PATIENCE)

    def get_finished(self) -> list[TransferResult]:
        """Transfers that have ended since the last call."""
        self._collect()
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Return when these transfers have provably ended."""
        if self._client is None:
            return
        ours = {job for job, (theirs, _, _) in self._jobs.items() if theirs in job_ids}
        patient_until = time.monotonic() + FLUSH_PATIENCE
        while ours and time.monotonic() < patient_until:
            self._collect()
            ours &= self._jobs.keys()
            time.sleep(FLUSH_POLL)
        self._end(ours)

    def shutdown(self) -> None:
        """End the session; bounded."""
        if self._client is not None:
            self._client.close(timeout=1.0)

    # What the connector takes along with finished transfers.

    def begin_anew(self) -> set[int]:
        """Ended loads, by vLLM's job id, whose requests have to begin anew since something did not arrive."""
        return set() if self._resumes else set(self._failed_loads)

    def take_failed_blocks(self) -> set[int]:
        """GPU blocks of ended loads that were not filled, where a request can go on from what was."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_failed_loads(self) -> dict[int, FailedLoad]:
        """Ended loads of which something did not arrive, by vLLM's job id."""
        failed, self._failed_loads = self._failed_loads, {}
        return failed

    def _end_copies(self) -> None:
        """What has not begun is given up, what runs is waited for."""
        self._end(set(self._jobs))

    def _end(self, jobs: set[int]) -> None:
        """Without end on purpose: a block given away under a running copy would be a wrong answer."""
        patience = FLUSH_PATIENCE
        while jobs and self._client is not None and not self._client.wait(jobs, patience):
            patience = min(2 * patience, LONGEST_PATIENCE)
            logger.warning("Blockyard: a copy of %d jobs still runs; their blocks must not be reused yet", len(jobs))

    def _collect(self, timeout: float = 0.0) -> None:
        for result in self._client.finished(timeout) if self._client is not None else ():
            self._take(result)

    def _submit(self, kind: CopyKind, job_id: int, spec: ChunkSpec, blocks: list[BlockRange] | None) -> None:
        self._jobs[spec.job] = (job_id, spec, blocks or [])
        if self._client is None or blocks is None:
            state = CopyState.DETACHED if self._client is None else CopyState.COPY_ERROR
            self._take(CopyResult(spec.job, kind, [state] * len(spec.keys)))
            return
        job = CopyJob(spec.job, kind, list(spec.keys), blocks, spec.grant)
        if self.weights.agrees(spec.heard):
            self._client.submit(job)
        else:
            self._client.refuse(job, CopyState.STALE)

    def _take(self, result: CopyResult) -> None:
        job_id, spec, blocks = self._jobs.pop(result.job)
        self.tally.copied(result)
        if result.kind == "load":
            self._loads -= 1
            # What came while the weights changed is of no use either.
            stale = not self.weights.agrees(spec.heard)
            lost = [i for i, state in enumerate(result.states) if stale or state is not CopyState.OK]
            if lost:
                reason = (CopyState.STALE if stale else result.states[lost[0]]).label
                self._failed_loads[job_id] = FailedLoad(frozenset(spec.offload_keys[i] for i in lost), reason)
                if self._resumes:
                    self._failed_blocks.update(block for i in lost if blocks for block in blocks[i].block_ids)
                logger.warning(
                    "Blockyard: %d of %d chunks did not load (%s); they are computed instead",
                    len(lost),
                    len(result.states),
                    reason,
                )
        self._done.append(TransferResult(job_id, True, result.copied, result.seconds))


def _tensors(kv_caches: CanonicalKVCaches, place: int) -> list[PagedTensor]:
    """One group's tensors in vLLM's order, each once. Groups share them; each has blocks of its own there."""
    seen: dict[int, PagedTensor] = {}
    for ref in kv_caches.group_data_refs[place]:
        seen.setdefault(ref.tensor_idx, PagedTensor(kv_caches.tensors[ref.tensor_idx].tensor, ref.page_size_bytes))
    return list(seen.values())


def _copier(pages: list[GroupPages]) -> DeviceCopier:
    device = pages[0].tensors[0].tensor.device.type
    if device == "cuda":
        return CudaCopier(pages)
    if device == "cpu":
        return CpuCopier(pages)
    raise LayoutRefused(f"KV cache on a {device} device; cuda and cpu are supported")


def blocks_of_load(
    gpu: GPULoadStoreSpec, keys: Sequence[OffloadKey], groups: Sequence[CacheGroup]
) -> list[BlockRange] | None:
    """Split a load's GPU blocks by chunk; None when they are not what the keys say.

    chunk       |     0     |     1     |      blocks_per_chunk = 4
    page        | 0 1 2 3   | 0 1 2 3   |
    block_ids         7 9     3 4 5 6         block_indices[group] % 4 = 2: the first two pages are not wanted
    """
    ids = [int(block) for block in gpu.block_ids]
    ranges: list[BlockRange] = []
    for group, size, index in zip(groups, gpu.group_sizes, gpu.block_indices, strict=True):
        mine, ids = ids[:size], ids[size:]
        page = int(index) % group.blocks_per_chunk
        while mine:
            if page < group.first_page:
                return None
            count = min(group.blocks_per_chunk - page, len(mine))
            ranges.append(BlockRange(mine[:count], page, group.number))
            mine, page = mine[count:], 0
    agree = [blocks.group for blocks in ranges] == [get_offload_group_idx(key) for key in keys]
    return ranges if agree else None
