"""The connector of an engine that must serve without Blockyard: it does nothing.

Owns nothing. vLLM's own offloading is left out as well: it asserts layouts and versions that this engine may not have.
"""

import logging
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

from blockyard.engine.vllm.logs import show_with_vllms

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class Bystander(KVConnectorBase_V1, SupportsHMA):
    """Has nothing to load and stores nothing."""

    @property
    def requires_kv_delivery(self) -> bool:
        return False

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

    return BlockyardConnector
