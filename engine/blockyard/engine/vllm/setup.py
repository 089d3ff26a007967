"""What scheduler and ranks of one engine agree on before they attach.

Owns the one-time reading of vLLM's configuration. Runs in each process apart and must give the same result in each.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config

from blockyard.engine.identity import EngineIdentity, bounded_name
from blockyard.engine.vllm import fingerprint, support
from blockyard.engine.vllm.groups import CacheGroup, cache_groups, largest_that_divides, window_blocks
from blockyard.engine.vllm.logs import show_with_vllms
from blockyard.engine.vllm.settings import SETUP_KEY, EngineSettings, parse

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """Settings, cache groups, world and standing of one engine."""

    settings: EngineSettings
    groups: tuple[CacheGroup, ...]
    world: fingerprint.World
    identity: EngineIdentity
    instance: str


def why_detached(config: "VllmConfig", cache: "KVCacheConfig") -> str | None:
    """Why this engine must serve without Blockyard whatever the worker does; None: it may attach.

    Raises ConfigError when the extra config cannot be a valid configuration.
    """
    show_with_vllms()
    settings = _settings(config)
    reason = support.why_not(config, cache, settings.allow_untested)
    if reason is None and not _blocks_per_chunk(config, cache, settings):
        reason = (
            f"layout: chunks of {settings.blocks_per_chunk} blocks do not divide "
            f"prefix_cache_retention_interval {config.cache_config.prefix_cache_retention_interval}"
        )
    if reason is not None:
        logger.warning("Blockyard: serving detached, without Blockyard: %s", reason)
    return reason


def prepare(config: "VllmConfig", cache: "KVCacheConfig") -> EngineSetup:
    """Fill in what vLLM needs to build our spec, and leave the setup for it. Precondition: it may attach."""
    settings = _settings(config)
    transfer = config.kv_transfer_config
    # A load that fails is computed instead; vLLM's default would fail the request.
    transfer.kv_load_failure_policy = "recompute"
    extra = transfer.kv_connector_extra_config
    extra["spec_name"] = "BlockyardOffloadingSpec"
    extra["spec_module_path"] = "blockyard.engine.vllm.spec"
    extra["offload_prompt_only"] = settings.offload_prompt_only
    extra["blocks_per_chunk"] = _blocks_per_chunk(config, cache, settings)
    offloading = build_offloading_config(config, cache)
    world = fingerprint.of_engine(config, offloading, settings)
    identity = EngineIdentity(
        engine=bounded_name(offloading.engine_id),
        model=offloading.model.name,
        fingerprint=world.digest,
        gpu_cache_bytes=offloading.worker_kv_bytes_per_block * cache.num_blocks,
    )
    instance = fingerprint.instance_of(config, offloading)
    setup = EngineSetup(settings, cache_groups(offloading, cache), world, identity, instance)
    extra[SETUP_KEY] = setup
    _say(setup)
    return setup


def _settings(config: "VllmConfig") -> EngineSettings:
    extra = config.kv_transfer_config.kv_connector_extra_config
    return parse({name: value for name, value in extra.items() if name != SETUP_KEY})


def _blocks_per_chunk(config: "VllmConfig", cache: "KVCacheConfig", settings: EngineSettings) -> int:
    """Blocks per chunk; 0 when what was asked for will not do."""
    blocks = [group.kv_cache_spec.block_size for group in cache.kv_cache_groups]
    wanted = settings.blocks_per_chunk or max(1, settings.chunk_tokens // max(blocks))
    fits = largest_that_divides(config.cache_config.prefix_cache_retention_interval, wanted, window_blocks(cache))
    return fits if fits == wanted or not settings.blocks_per_chunk else 0


def _say(setup: EngineSetup) -> None:
    logger.info("Blockyard: a failed load is computed instead (kv_load_failure_policy is set to recompute)")
    logger.info("Blockyard: world %s of %s", setup.world.digest.hex(), setup.identity.model)
    if setup.world.private:
        logger.warning("Blockyard: this engine shares no blocks with others: %s", setup.world.private)
