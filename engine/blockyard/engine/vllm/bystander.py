"""The connector of an engine that must serve without Blockyard: it does nothing.

Owns nothing. vLLM's own offloading is left out as well: it asserts layouts and versions that this engine may not have.
"""

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from blockyard.engine.vllm.logs import show_with_vllms
from blockyard.engine.vllm.metrics.shown import Shown
from blockyard.engine.vllm.metrics.tally import Tally

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class Bystander(Shown, KVConnectorBase_V1, SupportsHMA):
    """Has nothing to load and stores nothing; `why` is the reason's word for metrics."""

    why = ""

    @classmethod
    def because(cls, reason: str, *args: Any) -> "Bystander":
        """One that stays out for this reason, which begins with its word and a colon."""
        made = cls(*args)
        made.why = reason.partition(":")[0]
        return made

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @cached_property
    def _standing(self) -> Tally:
        tally = Tally()
        tally.stands(self.why)
        return tally

    def _tally(self) -> Tally | None:
        return self._standing if self.role == KVConnectorRole.SCHEDULER else None

    # Scheduler process.

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    # Rank process.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


def stand_by(reason: str) -> type[Bystander]:
    """The connector's class where ours cannot be: each one made says why."""

    class BlockyardConnector(Bystander):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            show_with_vllms()
            logger.warning("Blockyard: serving detached, without Blockyard: %s", reason)
            super().__init__(*args, **kwargs)
            self.why = reason.partition(":")[0]

    return BlockyardConnector
