"""The world of a vLLM engine: every property that decides whether two engines' KV bytes are interchangeable.

Owns which fields count and how they are read from vLLM's configuration. Scheduler and ranks compute it apart and must
come to the same result, so only fields that are equal in both processes are used.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from vllm.platforms import current_platform

import vllm
from blockyard.common.identity import Fingerprint, fingerprint
from blockyard.engine.vllm import weights
from blockyard.engine.vllm.settings import EngineSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_offload.config import OffloadingConfig


@dataclass(frozen=True, slots=True)
class World:
    """A fingerprint, the fields it was made from, and why it is private to this engine (empty: it is not)."""

    digest: Fingerprint
    fields: Mapping[str, str]
    private: str


def of_engine(config: "VllmConfig", offloading: "OffloadingConfig", settings: EngineSettings) -> World:
    """World of this engine. A field that cannot be established makes the world private to this start of the engine."""
    fields: dict[str, str] = {}
    unknown: list[str] = []
    _add_weights(fields, unknown, config)
    _add_model(fields, unknown, config)
    _add_cache(fields, unknown, config, offloading)
    fields["platform"] = _platform()
    fields["vllm"] = vllm.__version__
    fields["salt"] = settings.salt
    if unknown:
        # An operator may give the engine id, and then keep it over restarts; the instance is new at each start.
        fields["private"] = instance_of(config, offloading)
    return World(fingerprint(fields), fields, "; ".join(unknown))


def instance_of(config: "VllmConfig", offloading: "OffloadingConfig") -> str:
    """Name of this start of this engine, the same in its scheduler and its ranks."""
    return f"{offloading.engine_id}:{config.instance_id}"


def _add_weights(fields: dict[str, str], unknown: list[str], config: "VllmConfig") -> None:
    model = config.model_config
    load_format = str(config.load_config.load_format)
    fields["load_format"] = load_format
    if load_format.endswith("dummy"):
        fields["weights"] = f"dummy:{model.seed}:{model.model}"
        return
    path = Path(model.model)
    if path.exists():
        digest = weights.local_digest(path)
    else:
        digest = model.hf_config._commit_hash
    fields["weights"] = str(digest)
    if model.model_weights:
        unknown.append(f"the weights come from {model.model_weights!r}, which is not looked into")
    elif digest is None:
        unknown.append(f"the weights of {model.model!r} have no identity (no weight file, no hub commit)")
    lora = config.lora_config
    # The adapter itself is part of each request's keys.
    fields["lora"] = "none" if lora is None else f"{lora.lora_dtype}:{lora.fully_sharded_loras}"


def _add_model(fields: dict[str, str], unknown: list[str], config: "VllmConfig") -> None:
    model = config.model_config
    fields["dtype"] = str(model.dtype)
    fields["quantization"] = str(model.quantization)
    fields["hf_config"] = _digest(_model_config_text(model.hf_config.to_dict()))
    if callable(model.hf_overrides):
        unknown.append("hf_overrides is a function")
    else:
        fields["hf_overrides"] = repr(sorted(dict(model.hf_overrides).items(), key=lambda item: item[0]))
    speculative = config.speculative_config
    fields["speculative"] = "none" if speculative is None else f"{speculative.method}:{speculative.model}"


def _add_cache(
    fields: dict[str, str], unknown: list[str], config: "VllmConfig", offloading: "OffloadingConfig"
) -> None:
    cache, parallel = config.cache_config, offloading.parallel
    fields["cache_dtype"] = f"{cache.cache_dtype}:{offloading.model.dtype}"
    fields["cache_scales"] = str(getattr(cache, "calculate_kv_scales", False))
    fields["cache_layout"] = str(offloading.kv_cache_layout)
    fields["attention_backend"] = str(config.attention_config.backend)
    fields["blocks_per_chunk"] = str(offloading.cache.blocks_per_chunk)
    fields["tokens_per_hash"] = str(offloading.cache.tokens_per_hash)
    for group in offloading.groups:
        fields[f"group{group.group_id}"] = f"{group.tokens_per_block}:{','.join(group.layer_names)}"
    fields["parallel"] = (
        f"tp{parallel.tp_size} pp{parallel.pp_size} pcp{parallel.pcp_size} dcp{parallel.dcp_size} "
        f"world{parallel.world_size}"
    )
    algorithm = str(cache.prefix_caching_hash_algo)
    fields["hash"] = f"{algorithm}:{os.environ.get('PYTHONHASHSEED', 'unset')}"
    if algorithm.startswith("xxhash"):
        unknown.append(f"block hashes by {algorithm} differ from process to process")


def _model_config_text(values: Mapping[str, object]) -> str:
    """The model's configuration without what differs between nodes that hold the same model."""
    kept = {name: value for name, value in values.items() if name not in ("_name_or_path", "transformers_version")}
    return json.dumps(kept, sort_keys=True, default=str)


def _platform() -> str:
    """What decides the page format on this device: the CPU's kernels choose it by instruction set."""
    if current_platform.is_cpu():
        amx = torch.cpu._is_amx_tile_supported()
        return f"cpu:{torch.backends.cpu.get_cpu_capability()}:amx={amx}"
    return f"{current_platform.device_type}:{current_platform.get_device_name()}"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
