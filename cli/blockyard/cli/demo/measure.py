"""Owns how one prompt's time to the first token is taken in each state of the caches. It never judges.

The prompt is whole chunks and a tail shorter than a block: the engine's own prefix cache and the host tier then
cover exactly the same tokens, and what is left to compute is the same in every row but the first.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from blockyard.cli.demo.chat_client import Completion, Options
from blockyard.cli.demo.engine import CHUNK_TOKENS, DemoEngine
from blockyard.cli.demo.worker_client import WorkerClient

PROMPT_CHUNKS = 23
TAIL_TOKENS = 24
SHARED_TOKENS = PROMPT_CHUNKS * CHUNK_TOKENS
ANSWER_TOKENS = 16
RECOMPUTES = 3
HITS = 5
DISK_HITS = 3
MOST_LATE = 2
# A vLLM rank spins for a second after its last step, and would take a core from the engine measured next.
SPIN_S = 1.2
SEED = 20

Restart = Callable[[], Awaitable[None]]
FIRST_LETTER, LETTERS = ord("a"), 26


@dataclass(frozen=True, slots=True)
class Row:
    """Several answers to the same prompt with the caches in one state."""

    name: str
    engine: str
    what: str
    answers: list[Completion]
    late: int = 0
    """Runs left out because the engine gave up waiting for the worker, as it must on a machine that is too busy."""

    @property
    def ttft_s(self) -> float:
        return statistics.median(self.ttft_samples_s)

    @property
    def ttft_samples_s(self) -> list[float]:
        return [answer.first_token_s for answer in self.answers]

    @property
    def cached_tokens(self) -> int:
        """Of the worst answer."""
        return min(answer.cached_tokens for answer in self.answers)

    def tokens_equal(self, reference: Row) -> bool:
        """Whether every answer is the reference's, token by token."""
        wanted = reference.answers[0].token_ids
        return all(answer.token_ids == wanted for answer in self.answers)


def prompt() -> list[int]:
    """Noise, so that no two blocks are alike and attention has something to tell apart."""
    source = random.Random(SEED)  # noqa: S311
    return [FIRST_LETTER + source.randrange(LETTERS) for _ in range(SHARED_TOKENS + TAIL_TOKENS)]


async def recompute(engine: DemoEngine) -> Row:
    """Nothing is cached: all runs but the last have a cache salt of their own, which makes them another prompt.

    The last has none, so that it is what the engine's own cache holds afterwards.
    """
    salts = [*(f"recompute-{number}" for number in range(1, RECOMPUTES)), None]
    answers = [await _ask(engine, salt) for salt in salts]
    return Row("recompute", engine.name, "computed", answers)


async def prefix_hit(engine: DemoEngine) -> Row:
    """The engine's own GPU cache has all but the tail."""
    return Row("prefix_hit", engine.name, "own GPU cache", [await _ask(engine) for _ in range(HITS)])


async def host_hit(engine: DemoEngine, worker: WorkerClient, name: str, what: str) -> Row:
    """The engine's own cache is empty each time; the worker's host pool has all but the tail."""
    await asyncio.sleep(SPIN_S)
    answers: list[Completion] = []
    late = 0
    while len(answers) < HITS:
        await engine.client.reset_prefix_cache()
        given_up = await worker.given_up(engine.name)
        answer = await _ask(engine)
        if late < MOST_LATE and await worker.given_up(engine.name) > given_up:
            late += 1
        else:
            answers.append(answer)
    return Row(name, engine.name, what, answers, late)


async def disk_hit(
    engine: DemoEngine, worker: WorkerClient, engines: int, restart: Restart, name: str, what: str
) -> Row:
    """The worker was killed each time: its pool is empty, and its disk has all but the tail."""
    answers: list[Completion] = []
    late = 0
    while len(answers) < DISK_HITS:
        copies = await worker.all_written()
        await restart()
        await worker.copies_found(copies)
        await worker.engines_attached(engines)
        await engine.client.reset_prefix_cache()
        await asyncio.sleep(SPIN_S)
        answer = await _ask(engine)
        if late < MOST_LATE and await worker.read_too_late():
            late += 1
        else:
            answers.append(answer)
    return Row(name, engine.name, what, answers, late)


async def _ask(engine: DemoEngine, salt: str | None = None) -> Completion:
    return await engine.client.complete(prompt(), Options(max_tokens=ANSWER_TOKENS, cache_salt=salt))
