"""What scheduler and ranks of one engine agree on before they attach.

Owns the one-time reading of vLLM's configuration. Runs in each process apart and must give the same result in each.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config

from blockyard.engine.identity import EngineIdentity, bounded_name
from blockyard.engine.vllm import fingerprint, support
from blockyard.engine.vllm.logs import show_with_vllms
from blockyard.engine.vllm.settings import SETUP_KEY, EngineSettings, parse

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """Settings, world and standing of one engine. `detached` says why it must not attach; None: it may."""

    settings: EngineSettings
    world: fingerprint.World
    identity: EngineIdentity
    detached: str | None


def prepare(config: "VllmConfig", cache: "KVCacheConfig") -> EngineSetup:
    """Check the settings, fill in what vLLM needs to build our spec, and leave the setup for it.

    Raises ConfigError when the extra config cannot be a valid configuration.
    """
    show_with_vllms()
    transfer = config.kv_transfer_config
    assert transfer is not None
    extra = transfer.kv_connector_extra_config
    settings = parse({name: value for name, value in extra.items() if name != SETUP_KEY})
    # A load that fails is computed instead; vLLM's default would fail the request.
    transfer.kv_load_failure_policy = "recompute"
    extra["spec_name"] = "BlockyardOffloadingSpec"
    extra["spec_module_path"] = "blockyard.engine.vllm.spec"
    extra["offload_prompt_only"] = settings.offload_prompt_only
    extra["blocks_per_chunk"] = settings.blocks_per_chunk or _blocks_per_chunk(cache, settings.chunk_tokens)
    offloading = build_offloading_config(config, cache)
    world = fingerprint.of_engine(config, offloading, settings)
    identity = EngineIdentity(
        engine=bounded_name(offloading.engine_id),
        model=offloading.model.name,
        fingerprint=world.digest,
        gpu_cache_bytes=offloading.worker_kv_bytes_per_block * cache.num_blocks,
    )
    setup = EngineSetup(
        settings=settings,
        world=world,
        identity=identity,
        detached=support.why_not(config, cache, settings.allow_untested),
    )
    extra[SETUP_KEY] = setup
    _say(setup)
    return setup


def _blocks_per_chunk(cache: "KVCacheConfig", chunk_tokens: int) -> int:
    block_size: int = cache.kv_cache_groups[0].kv_cache_spec.block_size
    return max(1, chunk_tokens // block_size)


def _say(setup: EngineSetup) -> None:
    logger.info("Blockyard: a failed load is computed instead (kv_load_failure_policy is set to recompute)")
    logger.info("Blockyard: world %s of %s", setup.world.digest.hex(), setup.identity.model)
    if setup.world.private:
        logger.warning("Blockyard: this engine shares no blocks with others: %s", setup.world.private)
    if setup.detached:
        logger.warning("Blockyard: serving detached, without Blockyard: %s", setup.detached)
