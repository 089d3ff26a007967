"""A leader or worker whose main loop stops making progress while the process, its threads and connections live on.

Owns the two ways to stop it, each ended by the same call again: the loop is blocked, as by a step that never ends; or
the loop runs but its clock does not tick, as when one task waits for ever. `PROGRAM` is for `program`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from support.child_process import ChildProcess

PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from support import stalls; stalls.install()"
)

_LOOK_S = 0.02
_BLOCK = signal.SIGUSR1
_HOLD = signal.SIGUSR2

_blocked = False
_held = False


def block(child: ChildProcess) -> None:
    """Block the child's loop, or let it go on."""
    os.kill(child.pid, _BLOCK)


def hold_ticks(child: ChildProcess) -> None:
    """Let the child's ticks wait, or go on; all else on its loop runs."""
    os.kill(child.pid, _HOLD)


def install() -> None:
    """In the child, before its program."""
    from blockyard.leader import service
    from blockyard.worker import shell

    signal.signal(_BLOCK, _turn_block)
    signal.signal(_HOLD, _turn_hold)
    for module in (service, shell):
        vars(module)["asyncio"] = _HeldSleep()


def _turn_block(*_: object) -> None:
    """Runs on the main thread, which is the loop's; the second signal interrupts the first one's wait."""
    global _blocked
    _blocked = not _blocked
    while _blocked:
        time.sleep(_LOOK_S)


def _turn_hold(*_: object) -> None:
    global _held
    _held = not _held


class _HeldSleep:
    """asyncio as the ticking module sees it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while _held:
            await asyncio.sleep(_LOOK_S)
