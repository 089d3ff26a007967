"""One job from its places to its result: check, copy chunk by chunk, check again, report.

Owns when a copy counts: its slot had the promised generation before and after, its bytes matched the slot
table if they were verified, and the device has finished. Must never know threads or queues.
"""

import logging
import time
from collections.abc import Callable
from typing import Literal

import xxhash

from blockyard.common.messages.states import CopyState
from blockyard.engine.copies.base import DeviceCopier
from blockyard.engine.detached import Detached
from blockyard.engine.job_queue import QueuedJob
from blockyard.engine.jobs import BlockRange, CopyResult
from blockyard.engine.pool_map import PoolMap
from blockyard.engine.rank_link import STORE_WAIT_MS, Place, RankLink

Verify = Literal["off", "sample", "always"]

SAMPLE_EVERY = 16
"""With `sample`, one of so many loaded areas is verified."""

log = logging.getLogger(__name__)


class Verifier:
    """Which loaded areas are hashed, over all jobs of a rank."""

    def __init__(self, mode: Verify) -> None:
        self._every = {"off": 0, "sample": SAMPLE_EVERY, "always": 1}[mode]
        self._seen = 0

    def picks_next(self) -> bool:
        """Whether the next area is to be verified."""
        self._seen += 1
        return self._every > 0 and self._seen % self._every == 0


class Transfer:
    """Runs one job; `cut` says whether to leave out the chunks that are still to come."""

    def __init__(
        self,
        link: RankLink,
        mapped: PoolMap,
        copier: DeviceCopier,
        verifier: Verifier,
        cut: Callable[[], bool],
    ) -> None:
        self._link = link
        self._map = mapped
        self._copier = copier
        self._verifier = verifier
        self._cut = cut
        self._unverified = 0
        self._result: CopyResult | None = None

    def run(self, queued: QueuedJob) -> CopyResult:
        """The result, after the worker was told of it; raises Detached when the session is lost."""
        job = queued.job
        places = self._link.resolve(job, STORE_WAIT_MS if job.kind == "store" else 0)
        begun = time.perf_counter()
        states, copied = self._copy(queued, places)
        seconds = time.perf_counter() - begun
        self._result = CopyResult(job.job, job.kind, states, copied, seconds, self._unverified)
        if any(place.state is CopyState.OK for place in places):
            self._link.done(job.job, job.kind, states, copied, seconds)
        return self._result

    def lost(self, queued: QueuedJob) -> CopyResult:
        """The result when `run` did not return: a load that ended well stands, a store can no longer be
        committed.
        """
        job = queued.job
        if self._result is not None and job.kind == "load":
            return self._result
        return CopyResult(job.job, job.kind, [CopyState.DETACHED] * len(job.keys))

    def _copy(self, queued: QueuedJob, places: list[Place]) -> tuple[list[CopyState], int]:
        """States of all keys and bytes of the OK ones. On return nothing is in flight."""
        job = queued.job
        states: list[CopyState] = []
        sizes: list[int] = []
        try:
            self._copier.begin(queued.fence)
            for place, blocks in zip(places, job.blocks, strict=True):
                state, size = self._copy_one(job.kind == "store", place, blocks)
                states.append(state)
                sizes.append(size)
            self._copier.finish()
        except Detached:
            raise
        except Exception:
            log.exception("blockyard: copy of job %d failed", job.job)
            return self._failed(places), 0
        for at, place in enumerate(places):
            if states[at] is CopyState.OK and self._map.generation(place.slot) != place.generation:
                states[at] = CopyState.STALE
        return states, sum(size for size, state in zip(sizes, states, strict=True) if state is CopyState.OK)

    def _copy_one(self, store: bool, place: Place, blocks: BlockRange) -> tuple[CopyState, int]:
        if place.state is not CopyState.OK:
            return place.state, 0
        if self._cut():
            return CopyState.CANCELLED, 0
        if self._map.generation(place.slot) != place.generation:
            return CopyState.STALE, 0
        if store:
            return CopyState.OK, self._copier.store(blocks, place.offset)
        if self._verifier.picks_next() and not self._verified(place, blocks.group):
            return CopyState.CORRUPT, 0
        return CopyState.OK, self._copier.load(place.offset, blocks)

    def _verified(self, place: Place, group: int) -> bool:
        """Whether an area's bytes are those that were stored; one without a checksum yet passes, counted."""
        expected = self._map.checksum(place.slot, self._link.rank)
        if expected is None:
            self._unverified += 1
            return True
        end = place.offset + self._link.groups[group].area_bytes
        with self._map.pool[place.offset : end] as area:
            return xxhash.xxh3_64_intdigest(area) == expected

    def _failed(self, places: list[Place]) -> list[CopyState]:
        """The device refused: wait for what it had begun, and let no key of the job count as copied."""
        self._copier.finish()
        return [CopyState.COPY_ERROR if place.state is CopyState.OK else place.state for place in places]
