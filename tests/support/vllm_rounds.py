"""The same chats at one vLLM server, round after round, with nothing in the engine's own cache: what is reused comes
from the worker, and each round's books can be compared with those of another.

Owns the chats and the books. No other engine may ask the worker for anything meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from dataclasses import dataclass

from blockyard.cli.demo.chat_client import ChatClient, Options, RequestFailed
from support.closing import Closing
from support.vllm_load import TURN_TOKENS, TURNS, Answers, prompt
from support.vllm_servers import REQUEST_S, TOKENS, Server
from support.worker_process import WorkerProcess

_CHATS = (601, 602)
_OPENING_TOKENS = 700
_PATIENCE_S = 90.0
_COUNTERS = (
    "acquire_requests_total",
    "acquire_keys_total",
    "hit_chunks_total",
    "hit_tokens_total",
    "fills_started_total",
)


@dataclass(frozen=True)
class Books:
    """What one round came to: at the worker, in the order of its counters, and by the answers."""

    worker: tuple[float, ...]
    cached_tokens: int

    @property
    def acquire_keys(self) -> float:
        return self.worker[_COUNTERS.index("acquire_keys_total")]

    @property
    def hit_chunks(self) -> float:
        return self.worker[_COUNTERS.index("hit_chunks_total")]


class Rounds(Closing):
    """`with Rounds(answers, server, worker) as rounds:` is under way, with every chunk stored."""

    def __init__(self, answers: Answers, server: Server, worker: WorkerProcess) -> None:
        self.failures: list[str] = []
        self.books: list[Books] = []
        self._answers = answers
        self._url = server.url
        self._worker = worker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="rounds", daemon=True)

    def __enter__(self) -> Rounds:
        self._thread.start()
        # The first one stores.
        self.wait_whole(2)
        self.books.clear()
        return self

    def close(self) -> None:
        self._ended.set()
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive(), "the round does not end"

    def wait_whole(self, count: int) -> None:
        """Wait for so many rounds from now on, from beginning to end."""
        wanted, deadline = len(self.books) + count, time.monotonic() + _PATIENCE_S
        while len(self.books) < wanted and not self.failures:
            assert time.monotonic() < deadline, f"{wanted - len(self.books)} rounds are missing"
            time.sleep(0.02)
        assert not self.failures, self.failures

    async def _run(self) -> None:
        while not self._ended.is_set():
            before = self._counted()
            try:
                # A connection of its own: the server may have closed one that lay idle since the last round.
                async with ChatClient(self._url) as client:
                    cached = sum([await self._converse(client, chat) for chat in _CHATS])
            except RequestFailed as error:
                self.failures.append(str(error))
                return
            after = self._counted()
            self.books.append(Books(tuple(b - a for a, b in zip(before, after, strict=True)), cached))

    async def _converse(self, client: ChatClient, chat: int) -> int:
        """One chat of several turns; how many tokens of its prompts were reused."""
        cached, said = 0, prompt(chat, _OPENING_TOKENS)
        for turn in range(TURNS):
            await client.reset_prefix_cache()
            answer = await client.complete(said, Options(max_tokens=TOKENS, deadline_s=REQUEST_S))
            if self._answers.differs(said, answer):
                self.failures.append(f"other tokens after {len(said)} tokens, {answer.cached_tokens} of them cached")
            cached += answer.cached_tokens
            said = said + list(answer.token_ids) + prompt(1000 * chat + turn, TURN_TOKENS)
        return cached

    def _counted(self) -> tuple[float, ...]:
        return tuple(self._worker.counted(name) for name in _COUNTERS)


def engine_counted(worker: WorkerProcess, name: str) -> float:
    """Sum over all engines and labels of `blockyard_engine_<name>`, as they have told their worker."""
    found = re.findall(rf"^blockyard_engine_{name}\{{.*\}} (\S+)$", worker.get("/metrics")[1], re.MULTILINE)
    return sum(map(float, found))
