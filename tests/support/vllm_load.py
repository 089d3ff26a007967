"""Users of a vLLM server: conversations of several turns, kept going in the background while a test breaks things.

Owns the clients and what they saw. The first answer to a prompt, by whichever engine, is the right one; every later
one must have the same tokens.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from blockyard.cli.demo.chat_client import ChatClient, Completion, Options, RequestFailed
from support.vllm_servers import REQUEST_S, TOKENS, Server

CLIENTS = 3
CONVERSATIONS = 5
TURNS = 4
OPENING_TOKENS = 1000
TURN_TOKENS = 350
PATIENCE_S = 90.0
PAUSE_AFTER_FAILURE_S = 0.2


def prompt(seed: int, length: int) -> list[int]:
    """Token ids of the byte vocabulary that no other seed shares a block with."""
    draw = random.Random(seed)
    return [draw.randrange(3, 250) for _ in range(length)]


class Answers:
    """The tokens that belong to each prompt, from all engines of a test module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def differs(self, asked: Sequence[int], answer: Completion) -> bool:
        """Whether this is another answer than the first to the same prompt."""
        with self._lock:
            return self._known.setdefault(tuple(asked), answer.token_ids) != answer.token_ids


class Load:
    """`with Load(answers, server) as load:` keeps users busy; afterwards `load.failures` says what went wrong.

    Every server gets its own clients, which all hold the same conversations, so that each may hit what another stored.
    """

    def __init__(self, answers: Answers, *servers: Server, rounds: int = 0) -> None:
        self.failures: list[str] = []
        self.answered = 0
        self.cached_tokens = 0
        self.slowest_s = 0.0
        self._answers = answers
        self._urls = [server.url for server in servers]
        self._rounds = rounds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._rounds or kind is not None:
            self._stopping.set()
        self._thread.join()

    def wait_answers(self, count: int) -> None:
        """Wait until so many more requests have been answered."""
        wanted = self.answered + count
        give_up_at = time.monotonic() + PATIENCE_S
        while self.answered < wanted:
            assert time.monotonic() < give_up_at, f"{wanted - self.answered} answers are missing; {self.failures}"
            time.sleep(0.05)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for url in self._urls:
                for number in range(CLIENTS):
                    clients.create_task(self._client(url, number))

    async def _client(self, url: str, number: int) -> None:
        """Each client begins with another conversation; with `rounds` it ends by itself."""
        async with ChatClient(url) as client:
            at = number
            while not self._stopping.is_set() and (not self._rounds or at < number + self._rounds * CONVERSATIONS):
                await self._converse(client, at % CONVERSATIONS)
                at += 1

    async def _converse(self, client: ChatClient, conversation: int) -> None:
        options = Options(max_tokens=TOKENS, deadline_s=REQUEST_S)
        said = prompt(conversation, OPENING_TOKENS)
        for turn in range(TURNS):
            if self._stopping.is_set():
                return
            try:
                answer = await client.complete(said, options)
            except RequestFailed as error:
                self.failures.append(str(error))
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
                return
            self._note(said, answer)
            said = said + list(answer.token_ids) + prompt(1000 * (conversation + 1) + turn, TURN_TOKENS)

    def _note(self, said: list[int], answer: Completion) -> None:
        if self._answers.differs(said, answer):
            self.failures.append(f"other tokens after {len(said)} tokens, {answer.cached_tokens} of them cached")
        self.answered += 1
        self.cached_tokens += answer.cached_tokens
        self.slowest_s = max(self.slowest_s, answer.total_s)
