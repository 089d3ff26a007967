"""Looks at a directory from time to time: whether it still is this worker's, and whether others take its room. Owns the
words; what follows from them is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from blockyard.common.config.units import MIB, format_size
from blockyard.worker.disk.io import Space, error_words
from blockyard.worker.disk.opening import Runner
from blockyard.worker.disk.threads import Expired, IoClass

_LEAST = MIB
"""Free bytes below which a file system is full, whatever its floor."""


class Lookout:
    """`ensure` raises OSError unless the directory is this worker's; `ensure` and `space` may block."""

    def __init__(
        self,
        runner: Runner,
        ensure: Callable[[], None],
        space: Callable[[], Space],
        floor: Callable[[int], int],
        tell: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._ensure = ensure
        self._space = space
        self._floor = floor
        self._tell = tell
        self._under_way = False

    def look(self) -> None:
        """Begin a look, unless the one before has not ended."""
        if not self._under_way:
            self._under_way = self._runner.submit(IoClass.UPKEEP, 0, self._judge, self._judged)

    def _judge(self) -> str:
        self._ensure()
        space = self._space()
        least = max(self._floor(space.total), _LEAST)
        if space.free >= least:
            return ""
        free, wanted = (format_size(-(-size // MIB) * MIB) for size in (space.free, least))
        return f"others take its room: its file system has {free} free, less than {wanted}"

    def _judged(self, result: object) -> None:
        self._under_way = False
        if isinstance(result, str):
            self._tell(result)
        elif isinstance(result, BaseException) and not isinstance(result, Expired):
            self._tell(error_words(result))
