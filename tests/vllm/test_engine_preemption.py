"""A GPU cache too small for the requests that run: they preempt each other while some load and some are aborted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.attached_engine import CHUNK, AttachedEngine, attached_engine, prompt
from support.vllm_inproc import generate, running_engine, scheduler, settle
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

GPU_BLOCKS = 40
TOKENS = 100
REQUESTS = 14
ABORTED = 4
PATIENCE_STEPS = 3000
"""Steps of the engine without any progress, most of them waits for a load, after which a request counts as starved."""

SHARED = [prompt(seed, 2 * CHUNK) for seed in (701, 702)]
PROMPTS = [SHARED[number % 2] + prompt(710 + number, 30 + 25 * number) for number in range(REQUESTS)]


@pytest.fixture(scope="module")
def right(model: Path) -> list[list[int]]:
    """What an engine without Blockyard says to each prompt by itself."""
    with running_engine(model, gpu_blocks=GPU_BLOCKS) as llm:
        return [generate(llm, tokens, TOKENS).token_ids for tokens in PROMPTS]


@pytest.fixture(scope="module")
def engine(model: Path, right: list[list[int]]) -> Iterator[AttachedEngine]:
    with (
        # A pin that is left behind is not to end by itself.
        WorkerProcess(host_pool="128MiB", slab_size="32MiB", pin_ttl="600s") as worker,
        attached_engine(model, worker, gpu_blocks=GPU_BLOCKS) as engine,
    ):
        engine.wait_attached()
        yield engine


@dataclass
class Crowd:
    """Requests stepped by hand; some are aborted at stages drawn from the seed."""

    engine: AttachedEngine
    draw: random.Random
    answers: dict[str, list[int]] = field(default_factory=dict)
    preemptions: Counter[str] = field(default_factory=Counter)

    def run(self, order: list[int], doomed: set[int]) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, seed=0)
        core = self.engine.llm.llm_engine
        waiting, condemned = list(order), {}
        idle, progress = 0, -1
        while waiting or core.has_unfinished_requests():
            while waiting and self.draw.random() < 0.5:
                number = waiting.pop(0)
                core.add_request(str(number), {"prompt_token_ids": PROMPTS[number]}, sampling)
                if number in doomed:
                    condemned[str(number)] = self.draw.randrange(40)
            for answer in core.step():
                if answer.finished:
                    self.answers[answer.request_id] = list(answer.outputs[0].token_ids)
            self._abort(condemned)
            now = self._progress()
            idle, progress = (0, now) if now != progress else (idle + 1, progress)
            assert idle < PATIENCE_STEPS, f"nothing moves: {self._states()}"

    def _abort(self, condemned: dict[str, int]) -> None:
        for name in [name for name, steps in condemned.items() if steps == 0]:
            self.engine.llm.llm_engine.abort_request([name])
            del condemned[name]
        for name in condemned:
            condemned[name] -= 1

    def _progress(self) -> int:
        """Changes whenever anything begins, is loaded, computes a token or ends."""
        requests = self._requests()
        self.preemptions |= Counter({name: one.num_preemptions for name, one in requests.items()})
        return hash((len(self.answers), *((name, one.status, one.num_tokens) for name, one in requests.items())))

    def _states(self) -> dict[str, str]:
        return {name: one.status.name for name, one in self._requests().items()}

    def _requests(self) -> dict[str, Any]:
        return scheduler(self.engine.llm).requests


def crowd_is_served(engine: AttachedEngine, right: list[list[int]], seed: int) -> int:
    """Check one crowd; how often one of it was preempted."""
    draw = random.Random(str(seed))
    order = draw.sample(range(REQUESTS), REQUESTS)
    doomed = set(draw.sample(range(REQUESTS), ABORTED))
    for shared in SHARED:
        engine.ask(shared, length=1)
    engine.lose_gpu_cache()
    loads = engine.worker.metric("loads_completed_total")
    crowd = Crowd(engine, draw)
    crowd.run(order, doomed)
    settle(engine.llm)
    served = {int(name.partition("-")[0]): tokens for name, tokens in crowd.answers.items()}
    assert served == {number: right[number] for number in set(range(REQUESTS)) - doomed}
    assert engine.worker.metric("loads_completed_total") > loads, "some of them loaded"
    engine.check_idle_books()
    transfers = scheduler(engine.llm).connector.scheduler
    assert not transfers._jobs and not transfers._req_status
    return crowd.preemptions.total()


def test_preempted_aborted_and_loading_requests_starve_nobody(engine: AttachedEngine, right: list[list[int]]) -> None:
    """Who is preempted depends on when loads end, so there are crowds until two of them had some."""
    preempted = 0
    for seed in range(1, 9):
        preempted += crowd_is_served(engine, right, seed) > 0
        if preempted == 2:
            return
    pytest.fail("the cache was not too small for all of them")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(9, 40))
def test_many_crowds(engine: AttachedEngine, right: list[list[int]], seed: int) -> None:
    crowd_is_served(engine, right, seed)
