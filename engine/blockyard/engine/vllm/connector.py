"""The connector that vLLM loads: its own OffloadingConnector, asking once per request, recomputing what fails to load.

Owns what vLLM's offloading lacks: asking the worker once per request, reporting failed loads as blocks to recompute,
and offering recomputed chunks for storing again. Must never raise because of the worker.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from blockyard.engine.vllm.bystander import Bystander
from blockyard.engine.vllm.manager import BlockyardManager
from blockyard.engine.vllm.metrics.shown import Shown
from blockyard.engine.vllm.metrics.tally import Tally
from blockyard.engine.vllm.rank import BlockyardRank
from blockyard.engine.vllm.setup import prepare, why_detached
from blockyard.engine.vllm.specs import BlockyardConnectorMetadata, BlockyardWorkerMetadata, FailedLoad

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class BlockyardConnector(Shown, OffloadingConnector):
    """vLLM's OffloadingConnector on a Blockyard worker."""

    def __new__(cls, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> Any:
        """A bystander, which is none of us and so is not initialised here, where we must stay out."""
        reason = why_detached(vllm_config, kv_cache_config)
        if reason is not None:
            return Bystander.because(reason, vllm_config, role, kv_cache_config)
        return super().__new__(cls)

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        prepare(vllm_config, kv_cache_config)
        super().__init__(vllm_config, role, kv_cache_config)

    def _tally(self) -> Tally | None:
        if self.connector_scheduler is None:
            return self._rank.tally if self._rank is not None else None
        jobs = self.scheduler._jobs.values()
        stores = sum(job.is_store for job in jobs)
        return self._manager.standing(len(jobs) - stores, stores)

    # Scheduler process.

    @property
    def _manager(self) -> BlockyardManager:
        manager = self.scheduler.manager
        assert isinstance(manager, BlockyardManager)
        return manager

    def on_new_request(self, request: "Request") -> None:
        """Start following a request's chunk keys, and take in what it says of itself."""
        self._manager.hinting.begins(request)
        super().on_new_request(request)
        status = self.scheduler._req_status[request.request_id]
        self._manager.follow(request.request_id, status.group_states, request.lora_request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that can be loaded beyond those computed; None while the worker's answer is under way."""
        scheduler = self.scheduler
        self._manager.begins(request.request_id)
        status = scheduler._req_status.get(request.request_id)
        if status is None or status.transfer_jobs or request.skip_reading_prefix_cache:
            return self._match(request, num_computed_tokens)
        status.update_offload_keys()
        if self._loading_elsewhere(request.request_id, num_computed_tokens):
            return None, False
        if not self._manager.ready_to_look_up(request.request_id, num_computed_tokens):
            return None, False
        tokens, asynchronous = self._match(request, num_computed_tokens)
        self._manager.settle(request.request_id, num_computed_tokens, tokens or 0)
        return tokens, asynchronous

    def _loading_elsewhere(self, request: str, computed: int) -> bool:
        """Whether the first chunk that this request needs is being loaded for another: then one load serves both."""
        loading = self.scheduler._chunks_being_loaded
        return bool(loading) and self._manager.first_to_load(request, computed) in loading

    def _match(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        matched: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return matched

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """The request has its GPU blocks: a load of `num_external_tokens` begins, or it is computed whole."""
        status = self.scheduler._req_status.get(request.request_id)
        gpu_hit = status.num_locally_computed_tokens if status is not None else 0
        self._manager.has_blocks(request.request_id, blocks.get_block_ids(), gpu_hit)
        self._manager.allocated(request.request_id, gpu_hit, request.num_tokens, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> "KVConnectorMetadata":
        """What the ranks are to do with this step."""
        tokens, manager = scheduler_output.total_num_scheduled_tokens, self._manager
        manager.accounting.rate.step_begins(time.monotonic(), tokens)
        self._note_growth(scheduler_output)
        meta = super().build_connector_meta(self._without_loading(scheduler_output))
        step, heard = manager.epochs.step, manager.epochs.heard
        manager.epochs.step_ends()
        return BlockyardConnectorMetadata(
            meta.load_jobs, meta.store_jobs, meta.jobs_to_flush, idle=tokens == 0, step=step, heard=heard
        )

    def _note_growth(self, output: "SchedulerOutput") -> None:
        """Further blocks of requests that run; what a request begins with was told when it was allocated."""
        running = output.scheduled_cached_reqs
        for request, blocks in zip(running.req_ids, running.new_block_ids, strict=True):
            if blocks is not None and request not in running.resumed_req_ids:
                self._manager.grows(request, blocks)

    def _without_loading(self, output: "SchedulerOutput") -> "SchedulerOutput":
        """`output` without the preempted requests that already load.

        A reset of the prefix cache preempts running requests before a step, and the same step may take them in again.
        vLLM asserts that what a preempted request has under way are stores. A load begins only once those have ended,
        so nothing of such a request needs to be waited for.
        """
        preempted = output.preempted_req_ids or set()
        loading = {request for request in preempted if self._loads(request)}
        return replace(output, preempted_req_ids=preempted - loading) if loading else output

    def _loads(self, request: str) -> bool:
        status, jobs = self.scheduler._req_status.get(request), self.scheduler._jobs
        return status is not None and any(not jobs[job].is_store for job in status.transfer_jobs)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Take the ranks' reports: changed weights and failed loads first, so that chunks are offered again."""
        self._manager.accounting.rate.step_ends(time.monotonic())
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, BlockyardWorkerMetadata):
            if meta.changes and self._manager.hear(meta.changes):
                self._offer_again()
            for job, load in meta.failed_loads.items():
                self._note_failed_load(job, load)
        super().update_connector_output(connector_output)

    def reset_cache(self) -> bool | None:
        """Nothing that was stored is loaded any more.

        May be said again before a step has told the ranks what to flush for the first; vLLM asserts that nothing is to
        be flushed yet.
        """
        scheduler = self.scheduler
        to_flush, scheduler._current_batch_jobs_to_flush = scheduler._current_batch_jobs_to_flush, set()
        reset: bool | None = super().reset_cache()
        scheduler._current_batch_jobs_to_flush |= to_flush
        return reset

    def _offer_again(self) -> None:
        """Ranks have refused what they were to store. What a window has left behind is not there to be offered."""
        for request in self.scheduler._req_status.values():
            for config, group in zip(self.scheduler.config.kv_group_configs, request.group_states, strict=True):
                if config.sliding_window_size_in_chunks is None:
                    group.next_stored_chunk_idx = 0

    def _note_failed_load(self, job: int, load: FailedLoad) -> None:
        status = self.scheduler._jobs.get(job)
        if status is None:
            return
        self._manager.load_failed(status.req_id, load)
        request = self.scheduler._req_status.get(status.req_id)
        for group in request.group_states if request is not None else ():
            first: int | None = 0
            if self._manager.resumes:
                first = next((i for i, key in enumerate(group.offload_keys) if key in load.keys), None)
            if first is not None:
                group.next_stored_chunk_idx = min(group.next_stored_chunk_idx, first)

    # Rank process.

    @property
    def _rank(self) -> BlockyardRank | None:
        worker = self.connector_worker.worker if self.connector_worker is not None else None
        return worker if isinstance(worker, BlockyardRank) else None

    def bind_connector_metadata(self, connector_metadata: "KVConnectorMetadata") -> None:
        """A step begins."""
        super().bind_connector_metadata(connector_metadata)
        if self._rank is not None and isinstance(connector_metadata, BlockyardConnectorMetadata):
            self._rank.weights.step_begins(connector_metadata.step, connector_metadata.heard)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Requests whose transfers have ended; a step without computation leaves the loads some time first."""
        meta = self._connector_metadata
        if self._rank is not None and isinstance(meta, BlockyardConnectorMetadata) and meta.idle:
            self._rank.idle_step()
        finished: tuple[set[str], set[str]] = super().get_finished(finished_req_ids)
        return finished

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The same, and which of these requests have to begin anew."""
        worker = self.connector_worker
        loading = dict(worker._load_jobs) if worker is not None else {}
        results = super().get_transfer_results(finished_req_ids)
        if self._rank is not None:
            results.failed_recving.update(loading[job] for job in self._rank.begin_anew() if job in loading)
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """GPU blocks that a finished load did not fill: vLLM computes from the first of them on."""
        return self._rank.take_failed_blocks() if self._rank is not None else set()

    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        """This rank's report of the step, with the keys of failed loads."""
        meta = super().build_connector_worker_meta()
        failed = self._rank.take_failed_loads() if self._rank is not None else {}
        changes = self._rank.weights.news() if self._rank is not None else {}
        if meta is None:
            return BlockyardWorkerMetadata(changes=changes) if changes else None
        # Ours even if nothing failed: vLLM joins all ranks' reports in the first one's way, and its own drops failures.
        return BlockyardWorkerMetadata(meta.completed_jobs, meta.transfer_stats, failed, changes)
