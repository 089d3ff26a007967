"""Notices, in a rank's process, that the weights may have changed in place.

Owns the list of calls that leave them as they are. All calls of an engine reach a rank through one object of vLLM; any
that is not on the list counts as a change, so that no worker extension need be known. A model's `load_weights` counts
too, whoever calls it. What writes into parameters in another way, out of any call, is not noticed.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from vllm.v1.worker.worker_base import WorkerWrapperBase

from blockyard.engine.vllm.epochs import Change

logger = logging.getLogger(__name__)

STEPS = {"execute_model", "sample_tokens", "take_draft_token_ids", "execute_dummy_batch"}
START = {
    "compile_or_warm_up_model",
    "determine_available_memory",
    "get_kv_cache_spec",
    "get_kv_connector_handshake_metadata",
    "get_supported_kv_cache_layouts",
    "init_device",
    "initialize_from_config",
    "set_kv_cache_layout",
    "update_max_model_len",
}
LOOKS = {
    "annotate_profile",
    "check_health",
    "compute_weight_checksums",
    "get_cache_block_size_bytes",
    "get_compilation_match_table",
    "get_encoder_timing_stats",
    "get_model_inspection",
    "get_supported_tasks",
    "list_loras",
    "local_rank",
    "profile",
    "rank",
    "save_sharded_state",
    "save_tensorized_model",
    "supports_draft_weight_updates",
    "vocab_size",
}
OTHER_STATE = {
    "add_lora",
    "init_weight_transfer_engine",
    "pin_lora",
    "release_late_interaction_query_cache",
    "remove_lora",
    "reset_encoder_cache",
    "reset_mm_cache",
    "shutdown",
    "shutdown_weight_transfer_engine",
    "synchronize_device",
    "update_config",
    "wait_for_comm",
    "wake_up",
}
HARMLESS = frozenset(STEPS | START | LOOKS | OTHER_STATE)

FREES_MEMORY = frozenset({"sleep", "discard", "checkpoint_prepare"})
"""Before these every copy has to have ended. They count as changes: what waits to be stored is gone after them."""

_ONLOOKER = "vllm.v1.engine.llm_engine"
"""vLLM's front end, where it runs in the rank's own process, takes a look at the model when it starts."""


class WeightsWatch:
    """Counts for one rank; `settle` returns when nothing is copied to or from the device. `harmless`: further calls."""

    def __init__(self, rank: int, settle: Callable[[], None], harmless: frozenset[str] = frozenset()) -> None:
        self._rank = rank
        self._settle = settle
        self._harmless = HARMLESS | harmless
        self._models: WeakSet[Any] = WeakSet()
        self._change = Change(0, 0)
        self._heard = 0
        self.changes = 0
        WorkerWrapperBase.__getattr__ = _getattr
        _watches.add(self)

    def agrees(self, heard: tuple[int, ...]) -> bool:
        """Whether what was decided with these numbers of changes in mind is still right."""
        return heard[self._rank] == self.changes

    def step_begins(self, step: int, heard: tuple[int, ...]) -> None:
        """This step is computed with the present weights; the scheduler has heard of so many changes of each rank."""
        self._heard = heard[self._rank]
        if self._change.count != self.changes:
            self._change = Change(self.changes, step)

    def news(self) -> dict[int, Change]:
        """What the scheduler has not heard of yet, under this rank's number."""
        return {self._rank: self._change} if self._change.count != self._heard else {}

    def called(self, name: str, wrapper: Any) -> None:
        """The rank is about to be called."""
        if name in FREES_MEMORY:
            self._settle()
        if name not in self._harmless:
            self.changed(name)
        self._watch_model(wrapper)

    def changed(self, call: str) -> None:
        """This call may leave other weights behind."""
        if self._change.count == self.changes:
            logger.info("Blockyard: %s may change the weights: nothing that was stored before is loaded any more", call)
        self.changes += 1

    def _watch_model(self, wrapper: Any) -> None:
        """Whoever has the model at hand needs no call to load weights into it."""
        model = getattr(getattr(wrapper.worker, "model_runner", None), "model", None)
        if model is None or model in self._models:
            return
        self._models.add(model)
        load = getattr(model, "load_weights", None)
        if load is not None:
            model.load_weights = self._counting(load)

    def _counting(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def load_weights(*args: Any, **kwargs: Any) -> Any:
            self.changed("load_weights")
            try:
                return load(*args, **kwargs)
            finally:
                # In a thread of its own it may have taken many steps.
                self.changed("load_weights")

        return load_weights


_watches: WeakSet[WeightsWatch] = WeakSet()
_found = WorkerWrapperBase.__getattr__


def _getattr(wrapper: WorkerWrapperBase, name: str) -> Any:
    found = _found(wrapper, name)
    if not name.startswith("__") and sys._getframe(1).f_globals.get("__name__") != _ONLOOKER:
        for watch in list(_watches):
            watch.called(name, wrapper)
    return found
