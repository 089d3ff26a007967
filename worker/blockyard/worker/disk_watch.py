"""Tells people of disk directories that are not in use: on /readyz and in the log. Owns the words; changes nothing."""

import asyncio
import logging
from collections.abc import Sequence

from blockyard.common.logs import fields
from blockyard.worker.core.disk.directories import Directory
from blockyard.worker.health import Health

_LOOK_SECONDS = 0.2

_log = logging.getLogger(__name__)


class DiskWatch:
    """Looks at the core's directories now and then; a change shorter than that is not told."""

    def __init__(self, directories: Sequence[Directory], health: Health) -> None:
        self._directories = directories
        self._health = health
        self._told = dict.fromkeys(range(len(directories)), "")

    async def run(self) -> None:
        """Until cancelled."""
        while self._directories:
            # A directory that is known by then is not worth a word.
            await asyncio.sleep(_LOOK_SECONDS)
            for directory in self._directories:
                self._look(directory)

    def _look(self, directory: Directory) -> None:
        reason, path = _reason(directory), directory.settings.name
        if reason == self._told[directory.number]:
            return
        self._told[directory.number] = reason
        part = f"device of {path}"
        if reason:
            self._health.ill(part, reason)
            _log.warning("disk directory is not in use", extra=fields(path=path, reason=reason))
        else:
            self._health.well(part)
            _log.info("disk directory is in use", extra=fields(path=path))


def _reason(directory: Directory) -> str:
    if not directory.breaker.closed:
        return "left alone after it failed or hung; it is tried again by itself"
    return "" if directory.recovered else "what it holds is not all known yet"
