"""Waiting in tests for what nobody announces. Owns one bounded wait."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

PATIENCE_S = 30.0


async def until(condition: Callable[[], bool | Awaitable[bool]], *, within_s: float = PATIENCE_S) -> None:
    """Ask again and again until the answer is yes; TimeoutError after a time that no sound run needs."""
    async with asyncio.timeout(within_s):
        while True:
            answer = condition()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(0.02)
