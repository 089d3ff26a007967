"""Owns asking the leader over its HTTP API, with a deadline. It decides nothing from the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from blockyard.common.identity import Key

ANSWER_DEADLINE_S = 5.0


class LeaderSilent(RuntimeError):
    """The leader refused or did not answer in time; the message says which."""


@dataclass(frozen=True, slots=True)
class Match:
    """How many chunks of a prompt, from its start, a node holds in host memory."""

    node: str
    host_chunks: int


class LeaderClient:
    """Use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self.url = url
        timeout = aiohttp.ClientTimeout(total=ANSWER_DEADLINE_S)
        self._session = aiohttp.ClientSession(base_url=url, timeout=timeout)

    async def workers(self) -> list[dict[str, Any]]:
        """Every registered worker, with its engines."""
        return list((await self._ask("GET", "/v1/workers"))["workers"])

    async def where(self, key: Key) -> list[dict[str, Any]]:
        """Who holds one chunk."""
        return list((await self._ask("GET", f"/v1/where?key={key.hex()}"))["holders"])

    async def match(self, keys: Sequence[Key]) -> list[Match]:
        """Who holds how much of a prompt."""
        answer = await self._ask("POST", "/v1/match", {"keys": [key.hex() for key in keys]})
        return [Match(found["node"], int(found["tiers"]["host"])) for found in answer["workers"]]

    async def __aenter__(self) -> LeaderClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            async with self._session.request(method, path, json=body) as response:
                answer: dict[str, Any] = await response.json()
                if response.status != 200:
                    raise LeaderSilent(f"{self.url}{path} answered {response.status}: {answer.get('error')}")
                return answer
        except TimeoutError as error:
            raise LeaderSilent(f"{self.url}{path} took more than {ANSWER_DEADLINE_S:.0f} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise LeaderSilent(f"{self.url}{path} broke off: {error}") from error
