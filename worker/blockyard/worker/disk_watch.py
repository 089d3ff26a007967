"""Tells people of disk directories that are not as they should be: one entry for each on /readyz, one line in the log
when that begins and ends, one number. Owns the words; changes nothing.

What it knows comes from two sides: the core leaves devices alone, and below it directories are opened.
"""

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum

from blockyard.common.logs import fields
from blockyard.worker.core.disk.directories import Directory
from blockyard.worker.core.disk.operations import Operations
from blockyard.worker.health import Health

_LOOK_SECONDS = 0.2

_log = logging.getLogger(__name__)


class _State(Enum):
    """The worst comes first."""

    LEFT_ALONE = "disk directory is left alone"
    NOT_OPEN = "disk directory is not open"
    READING = "disk directory is being read"
    PARTLY = "disk directory is not used as it should be"
    USED = "disk directory is in use"


class DiskWatch:
    """Looks at the core's directories now and then; a change shorter than that is not told."""

    def __init__(self, directories: Sequence[Directory], operations: Operations, health: Health) -> None:
        self._directories = directories
        self._operations = operations
        self._health = health
        self._states = [_State.USED] * len(directories)
        self._troubles = [""] * len(directories)
        self._open = [False] * len(directories)
        self._seen = [""] * len(directories)
        self._failures = [""] * len(directories)

    @property
    def unused(self) -> int:
        """Directories whose device is not used now."""
        return sum(state in (_State.LEFT_ALONE, _State.NOT_OPEN) for state in self._states)

    def trouble(self, number: int, words: str, *, is_open: bool) -> None:
        """Why this directory is not open, or what of it is not used; nothing when all is well."""
        self._troubles[number], self._open[number] = words, is_open

    def seen(self, number: int, words: str) -> None:
        """What is wrong with it as a look at it finds, or nothing."""
        self._seen[number] = words

    def failed(self, number: int, words: str) -> None:
        """What its device answered last when it failed."""
        self._failures[number] = words

    async def run(self) -> None:
        """Until cancelled."""
        while self._directories:
            # A directory that is known by then is not worth a word.
            await asyncio.sleep(_LOOK_SECONDS)
            for directory in self._directories:
                self._look(directory)

    def _look(self, directory: Directory) -> None:
        number, path = directory.number, directory.settings.name
        state, reason = self._judge(directory)
        if state is _State.USED:
            self._health.well(f"disk {path}")
        else:
            self._health.ill(f"disk {path}", reason)
        if state is not self._states[number]:
            self._states[number] = state
            level = logging.INFO if state in (_State.USED, _State.READING) else logging.WARNING
            _log.log(level, state.value, extra=fields(path=path, **({"reason": reason} if reason else {})))

    def _judge(self, directory: Directory) -> tuple[_State, str]:
        number = directory.number
        words = self._troubles[number]
        if not directory.breaker.closed:
            return _State.LEFT_ALONE, f"{self._failure(directory)}; it is tried again by itself"
        if words and not self._open[number]:
            return _State.NOT_OPEN, f"{words}; it is tried again by itself"
        if not directory.recovered:
            return _State.READING, "what it holds is not all known yet"
        words = "; ".join(filter(None, [self._seen[number], words]))
        return (_State.PARTLY, words) if words else (_State.USED, "")

    def _failure(self, directory: Directory) -> str:
        if any(one.late and one.directory is directory for one in self._operations.all.values()):
            return "an operation has taken longer than disk_patience"
        return f"its device failed: {self._failures[directory.number]}" if self._failures[directory.number] else "hung"
