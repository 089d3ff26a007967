"""Owns talking to an OpenAI-compatible server as a user would: streamed, timed, with a deadline. It starts
nothing.

Token ids come back with the text (a vLLM extension), so that two runs can be compared exactly; times are the
client's own, from sending the request to the first and to the last token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

Message = Mapping[str, str]

HEALTH_DEADLINE_S = 2.0
RESET_PAUSE_S = 0.05
# A streamed line holds one token, but the first repeats the prompt's ids; 8 MiB is far above any prompt here.
MAX_LINE_BYTES = 8 * 1024 * 1024


class RequestFailed(RuntimeError):
    """The server refused, broke off or did not answer in time; the message says which."""


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float
    total_s: float
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Options:
    """What a request may ask for; the defaults make an answer reproducible."""

    max_tokens: int = 16
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = True
    cache_salt: str | None = None
    deadline_s: float = 60.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        salt = {} if self.cache_salt is None else {"cache_salt": self.cache_salt}
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **salt,
            **self.extra,
        }


REPRODUCIBLE = Options()


class ChatClient:
    """One server's client; use it as an async context manager."""

    def __init__(self, url: str, model: str = "tiny") -> None:
        self.url = url
        self.model = model
        self._session = aiohttp.ClientSession(base_url=url, read_bufsize=MAX_LINE_BYTES)

    async def complete(self, prompt: str | Sequence[int], options: Options = REPRODUCIBLE) -> Completion:
        """`prompt` as text, or as token ids to leave the tokenizer out of it."""
        given = prompt if isinstance(prompt, str) else list(prompt)
        return await self._stream("/v1/completions", {"prompt": given}, options)

    async def chat(self, messages: Sequence[Message], options: Options = REPRODUCIBLE) -> Completion:
        turns = [dict(message) for message in messages]
        return await self._stream("/v1/chat/completions", {"messages": turns}, options)

    async def healthy(self) -> bool:
        try:
            timeout = aiohttp.ClientTimeout(total=HEALTH_DEADLINE_S)
            async with self._session.get("/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def reset_prefix_cache(self, external: bool = False, deadline_s: float = 10.0) -> None:
        """Empties the engine's own prefix cache; with `external` also what its connector keeps.

        The engine refuses while blocks are held, also by a store that is still running, so it is asked again.
        """
        give_up_at = time.monotonic() + deadline_s
        while not await self._try_reset(external, deadline_s):
            if time.monotonic() > give_up_at:
                raise RequestFailed(f"{self.url} still holds blocks {deadline_s:.0f} s after a reset was asked for")
            await asyncio.sleep(RESET_PAUSE_S)

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _try_reset(self, external: bool, deadline_s: float) -> bool:
        path = "/reset_prefix_cache"
        parameters = {"reset_external": "true" if external else "false"}
        with self._failures_named(path, deadline_s):
            timeout = aiohttp.ClientTimeout(total=deadline_s)
            async with self._session.post(path, params=parameters, timeout=timeout) as response:
                await self._require_ok(path, response)
                return bool((await response.json())["success"])

    async def _stream(self, path: str, what: dict[str, Any], options: Options) -> Completion:
        body = {"model": self.model, **what, **options.body()}
        timeout = aiohttp.ClientTimeout(total=options.deadline_s)
        reading = _Reading(time.perf_counter())
        with self._failures_named(path, options.deadline_s):
            async with self._session.post(path, json=body, timeout=timeout) as response:
                await self._require_ok(path, response)
                async for event in _events(response):
                    reading.add(event)
        return reading.result(f"{self.url}{path}")

    async def _require_ok(self, path: str, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            raise RequestFailed(f"{self.url}{path} answered {response.status}: {await response.text()}")

    @contextmanager
    def _failures_named(self, path: str, deadline_s: float) -> Iterator[None]:
        """Turns what can go wrong below HTTP into one error that names the server and the path."""
        try:
            yield
        except TimeoutError as error:
            raise RequestFailed(f"{self.url}{path} took more than {deadline_s} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise RequestFailed(f"{self.url}{path} broke off: {error}") from error


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON payloads of a server-sent event stream, until its end mark."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        payload = line.removeprefix(b"data:").strip()
        if payload == b"[DONE]":
            return
        yield json.loads(payload)


class _Reading:
    """Gathers one streamed answer; both endpoints' events, which differ only in where the text stands."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._first: float | None = None
        self._last = started
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._usage: dict[str, Any] | None = None
        self._finish_reason: str | None = None

    def add(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise RequestFailed(f"the server reported {event['error']}")
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices", ()):
            self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        token_ids = choice.get("token_ids") or ()
        if token_ids:
            self._last = time.perf_counter()
            self._first = self._first or self._last
            self._token_ids += token_ids
        self._text.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def result(self, source: str) -> Completion:
        if self._first is None or self._usage is None:
            raise RequestFailed(f"{source} ended its stream without tokens or without usage")
        details = self._usage.get("prompt_tokens_details") or {}
        return Completion(
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            prompt_tokens=int(self._usage["prompt_tokens"]),
            cached_tokens=int(details.get("cached_tokens") or 0),
            first_token_s=self._first - self._started,
            total_s=self._last - self._started,
            finish_reason=self._finish_reason,
        )
