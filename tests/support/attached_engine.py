"""An in-process engine with its worker, and the questions that the tests put to the pair."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.host_pool import OpenedPool
from support.vllm_inproc import Generated, generate, generate_all, reset_engine_cache, running_engine, scheduler, settle
from support.worker_process import WorkerProcess

CHUNK = 256
DEADLINE_S = 120.0
TOKENS = 12


def prompt(seed: int, length: int) -> list[int]:
    """Token ids of the byte vocabulary that no other seed shares a block with."""
    draw = random.Random(seed)
    return [draw.randrange(3, 250) for _ in range(length)]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, or fail saying which one never came."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"never came: {what}"
        time.sleep(0.02)


@dataclass
class AttachedEngine:
    """The engine `llm` and the worker that it was told of."""

    llm: Any
    worker: WorkerProcess

    def ask(self, tokens: list[int], length: int = TOKENS) -> Generated:
        """Greedy answer; afterwards what was stored is committed."""
        answer = generate(self.llm, tokens, length)
        settle(self.llm)
        return answer

    def ask_all(self, prompts: list[list[int]], length: int = TOKENS) -> list[Generated]:
        answers = generate_all(self.llm, prompts, length)
        settle(self.llm)
        return answers

    def ask_afresh(self, tokens: list[int], length: int = TOKENS) -> Generated:
        """The same with nothing in the engine's own cache: what is cached comes from the worker."""
        self.lose_gpu_cache()
        return self.ask(tokens, length)

    def lose_gpu_cache(self) -> None:
        settle(self.llm)
        reset_engine_cache(self.llm)

    def wait_attached(self) -> None:
        for role in ("rank", "scheduler"):
            self.worker.wait_metric("sessions", 1, role=role, state="live")

    def wait_verified(self) -> None:
        self.worker.wait_metric("checksum_backlog", 0)

    def engine_metric(self, name: str) -> float:
        """What this engine has told the worker of one of its own counters."""
        text = self.worker.get("/metrics")[1]
        found = re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        return sum(float(value) for value in found)

    def stored(self) -> int:
        """Chunks that the worker holds ready."""
        return int(self.worker.metric("slots", state="ready"))

    def check_idle_books(self) -> None:
        """Between requests nothing is pinned, being filled, being loaded or doomed."""
        for name, labels in (
            ("pins", {}),
            ("slots", {"state": "filling"}),
            ("slots", {"state": "doomed"}),
            ("loads_in_flight", {}),
            ("fills_in_flight", {}),
        ):
            self.worker.wait_metric(name, 0, **labels)

    def held(self) -> frozenset[bytes]:
        """Keys of the chunks that the worker holds ready."""
        with OpenedPool(self.worker.pid) as pool:
            return frozenset(record.key for record in pool.ready())

    def spoil(self, which: Callable[[int], bool] = lambda index: True, others: frozenset[bytes] = frozenset()) -> int:
        """Flip one byte in each chosen stored chunk, of those that are not among `others`; how many."""
        self.wait_verified()
        with OpenedPool(self.worker.pid) as pool:
            mine = [record for record in pool.ready() if record.key not in others]
            chosen = [record for index, record in enumerate(mine) if which(index)]
            for record in chosen:
                for page in range(0, record.area_bytes, 4096):
                    pool.flip(record, page + 1)
        return len(chosen)


@contextmanager
def attached_engine(
    model: Path,
    worker: WorkerProcess,
    *,
    gpu_blocks: int = 256,
    engine: Mapping[str, Any] | None = None,
    **extra: Any,
) -> Iterator[AttachedEngine]:
    """An engine attached to `worker`; `extra` are the connector's settings, `engine` vLLM's own."""
    transfer = {
        "kv_connector": "BlockyardConnector",
        "kv_connector_module_path": "blockyard.engine.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"socket": str(worker.socket)} | extra,
    }
    with running_engine(model, kv_transfer=transfer, gpu_blocks=gpu_blocks, **(engine or {})) as llm:
        yield AttachedEngine(llm, worker)


class Running:
    """Requests that run as the test steps the engine."""

    def __init__(self, engine: AttachedEngine) -> None:
        self._engine_with_worker = engine
        self._engine = engine.llm.llm_engine
        self._answers: dict[str, list[int] | None] = {}

    def add(self, tokens: list[int], length: int) -> None:
        from vllm import SamplingParams

        name = f"request-{len(self._answers)}"
        sampling = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, seed=0)
        self._engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        self._answers[name] = None

    def step_until(self, condition: Callable[[], Any], what: str) -> None:
        def stepped() -> bool:
            for answer in self._engine.step():
                if answer.finished:
                    self._answers[answer.request_id] = list(answer.outputs[0].token_ids)
            return bool(condition())

        until(stepped, what)

    def settle_stores(self) -> None:
        """Step on until no transfer is under way, and the worker has all that was stored."""
        transfers = scheduler(self._engine_with_worker.llm).connector.scheduler
        self.step_until(lambda: not transfers._jobs, "the end of what is under way")
        self._engine_with_worker.worker.wait_metric("fills_in_flight", 0)

    def answers(self) -> list[list[int] | None]:
        self.step_until(lambda: None not in self._answers.values(), "every request's end")
        return list(self._answers.values())
