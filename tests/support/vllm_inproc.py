"""A real vLLM engine inside the test's own process: scheduler, connector and rank without any process
between.

Starts in seconds, and a test can look at the engine's state. What it cannot show is pickling between processes
and crashes; those need servers. Importing this module starts nothing, but sets the environment that vLLM reads
when an engine is made.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from blockyard.cli.demo.vllm_server import DTYPE, ENVIRONMENT

os.environ.update(ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING")

RESET_DEADLINE_S = 20.0
STEP_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Generated:
    token_ids: list[int]
    num_cached_tokens: int


@contextmanager
def running_engine(
    model: Path,
    *,
    kv_transfer: Mapping[str, Any] | None = None,
    gpu_blocks: int = 256,
    block_size: int = 32,
    max_length: int = 8192,
    dtype: str = DTYPE,
    **engine_arguments: Any,
) -> Iterator[Any]:
    """A `vllm.LLM`; at the end its threads, connector and process groups are gone, so another can be started.

    One at a time: vLLM keeps the rank's connector and the process groups once a process, not once an engine.
    """
    from vllm import LLM

    if kv_transfer is not None:
        engine_arguments["kv_transfer_config"] = dict(kv_transfer)
    llm = LLM(
        model=str(model),
        dtype=dtype,
        enforce_eager=True,
        # The engine refuses to start if one request could not fit; block 0 is never given to any.
        max_model_len=min(max_length, (gpu_blocks - 1) * block_size),
        block_size=block_size,
        num_gpu_blocks_override=gpu_blocks,
        prefix_caching_hash_algo="sha256_cbor",
        **engine_arguments,
    )
    try:
        yield llm
    finally:
        _stop(llm)
        del llm
        gc.collect()


@contextmanager
def unsent_is_forgotten() -> Iterator[None]:
    """For engines whose ranks are killed: what could not be sent to one holds up the end of vLLM 0.30 and 0.31."""
    import zmq

    make = zmq.Context.socket

    def socket(context: Any, *arguments: Any, **options: Any) -> Any:
        made = make(context, *arguments, **options)
        made.linger = 0
        return made

    with patch.object(zmq.Context, "socket", socket):
        yield


def _stop(llm: Any) -> None:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def generate(llm: Any, prompt_token_ids: Sequence[int], tokens: int = 16, **prompt_fields: Any) -> Generated:
    """Greedy tokens after `prompt_token_ids`; `prompt_fields` are vLLM's own, such as `cache_salt`."""
    return generate_all(llm, [prompt_token_ids], tokens, **prompt_fields)[0]


def generate_all(
    llm: Any,
    prompts: Sequence[Sequence[int]],
    tokens: int = 16,
    kv_transfer_params: Mapping[str, Any] | None = None,
    **prompt_fields: Any,
) -> list[Generated]:
    """All prompts at once, answered in their order."""
    from vllm import SamplingParams

    extra = None if kv_transfer_params is None else {"kv_transfer_params": dict(kv_transfer_params)}
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, seed=0, extra_args=extra)
    requests = [{"prompt_token_ids": list(prompt), **prompt_fields} for prompt in prompts]
    answers = llm.generate(requests, sampling, use_tqdm=False)
    return [Generated(list(answer.outputs[0].token_ids), answer.num_cached_tokens or 0) for answer in answers]


def reset_engine_cache(llm: Any) -> None:
    """Empties the engine's own prefix cache and leaves what a connector stored.

    The engine refuses while a store still holds blocks, and in process nothing moves unless somebody steps
    it.
    """
    give_up_at = time.monotonic() + RESET_DEADLINE_S
    while not llm.reset_prefix_cache():
        assert time.monotonic() < give_up_at, "blocks are still held: a store never ended"
        llm.llm_engine.step()
        time.sleep(STEP_PAUSE_S)


def settle(llm: Any, steps: int = 50) -> None:
    """Steps the engine without work until its connector has nothing pending, so that stores are committed."""
    for _ in range(steps):
        if not scheduler(llm).has_requests():
            return
        llm.llm_engine.step()
        time.sleep(STEP_PAUSE_S)


def scheduler(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def kv_tensors(llm: Any) -> list[Any]:
    """The rank's KV tensors, one a layer; the first dimension is the block."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    return list(runner.kv_caches)


def cached_block_ids(llm: Any) -> list[int]:
    """The GPU blocks that hold a full, hashed block, in the order of their ids."""
    blocks = scheduler(llm).kv_cache_manager.block_pool.blocks
    return [block.block_id for block in blocks if block.block_hash is not None]


def corrupt_cached_block(llm: Any, where: float) -> None:
    """The negative control: rotates the contents of one cached block in all layers; `where` is from 0 to 1."""
    block_ids = cached_block_ids(llm)
    block_id = block_ids[int(where * len(block_ids))]
    for tensor in kv_tensors(llm):
        block = tensor[block_id]
        block.copy_(block.flatten().roll(7).view_as(block))


def spoil_cached_block(llm: Any, group: int) -> None:
    """The same for the middle one of a cache group's blocks, in the layers of that group alone."""
    from vllm.v1.core.kv_cache_utils import get_group_id

    manager = scheduler(llm).kv_cache_manager
    hashed = [block for block in manager.block_pool.blocks if block.block_hash is not None]
    mine = [block.block_id for block in hashed if get_group_id(block.block_hash) == group]
    tensors = kv_tensors(llm)
    for name in scheduler(llm).kv_cache_config.kv_cache_groups[group].layer_names:
        block = tensors[int(name.split(".")[2])][mine[len(mine) // 2]]
        block.copy_(block.flatten().roll(7).view_as(block))
