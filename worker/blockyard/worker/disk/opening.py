"""How a directory comes into use: opened, looked through, and told to the core. Owns what is tried again and when; must
never know what an extent is for.

open -> what the logs tell -> each unsealed or unreadable segment, the youngest first -> known
What could not be opened or read is tried again, less and less often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from blockyard.worker.core.disk import wire
from blockyard.worker.disk.errors import SegmentGone
from blockyard.worker.disk.format.names import segment_name
from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.io import error_words
from blockyard.worker.disk.recovery import Kind
from blockyard.worker.disk.segments import SegmentStore, Started
from blockyard.worker.disk.threads import IoClass

_FOUND_AT_ONCE = 2048
"""Extents in one event, so that a start with many does not hold up the core."""

_REOPEN_SECONDS = 5.0
_FIRST_RESCAN = 5.0
_LONGEST_RESCAN = 300.0

Answer = Callable[[object], None]


class Runner(Protocol):
    """Does blocking work elsewhere and answers here, once per accepted operation: with what it returned, or raised."""

    def submit(self, kind: IoClass, size: int, work: Callable[[], object], answer: Answer) -> bool:
        """False when there is no place for it."""


class Opening:
    """`open_store` blocks; `store` is there once it has returned one. `trouble` hears why the directory is not open, or
    what of it is not used, or nothing.
    """

    def __init__(
        self,
        number: int,
        runner: Runner,
        open_store: Callable[[], tuple[SegmentStore, Started]],
        feed: Callable[[wire.DiskEvent], None],
        trouble: Callable[[str], None],
    ) -> None:
        self._number = number
        self._runner = runner
        self._open_store = open_store
        self._feed = feed
        self._trouble = trouble
        self._under_way = False
        self._due = 0.0
        self._lasting: list[str] = []
        self._to_scan: list[int] = []
        self._unread: dict[int, str] = {}
        self._rescan_pause = _FIRST_RESCAN
        self._rescan_at = 0.0
        self.store: SegmentStore | None = None

    def tick(self, now: float) -> None:
        """Begin what is due."""
        if self.store is None:
            if not self._under_way and now >= self._due:
                self._under_way = self._runner.submit(IoClass.UPKEEP, 0, self._open_store, self._opened)
                self._due = now + _REOPEN_SECONDS
            elif self._under_way and now >= self._due:
                self._trouble("does not answer")
                self._due = now + _REOPEN_SECONDS
        elif self._unread and not self._under_way and now >= self._rescan_at:
            self._rescan_at = now + self._rescan_pause
            self._rescan_pause = min(2 * self._rescan_pause, _LONGEST_RESCAN)
            self._to_scan = sorted(self._unread, reverse=True)
            self._scan_next(last=False)

    def _opened(self, result: object) -> None:
        self._under_way = False
        if isinstance(result, BaseException):
            self._trouble(f"cannot be opened: {error_words(result)}")
            return
        assert isinstance(result, tuple)
        self.store, started = result
        self._lasting = [one.detail for one in started.troubles if one.left and one.kind is not Kind.UNREADABLE]
        self._tell_trouble()
        self._tell(started.extents, [(one.number, one.bytes) for one in self.store.segments()])
        self._to_scan = sorted(started.to_scan, reverse=True)
        self._scan_next(last=True)

    def _scan_next(self, last: bool) -> None:
        """One segment after the other; `last`: with the end of this the directory is known."""
        store = self.store
        assert store is not None
        while self._to_scan:
            number = self._to_scan.pop(0)

            def scanned(result: object, number: int = number) -> None:
                self._scanned(number, result)
                self._scan_next(last)

            def work(number: int = number) -> tuple[list[Extent], list[tuple[int, int]]]:
                found = store.scan(number)
                return found, [(one.number, one.bytes) for one in store.segments() if one.number == number]

            self._under_way = self._runner.submit(IoClass.UPKEEP, 0, work, scanned)
            if self._under_way:
                return
            self._unread.setdefault(number, "too much waits at its device")
        self._under_way = False
        self._tell_trouble()
        if last:
            self._feed(wire.DiskFound(self._number, [], [], True))

    def _scanned(self, number: int, result: object) -> None:
        """What could not be read keeps its room, and what its log told of it."""
        if isinstance(result, tuple):
            self._unread.pop(number, None)
            self._tell(*result)
        elif isinstance(result, SegmentGone):
            self._unread.pop(number, None)
        elif isinstance(result, BaseException):
            self._unread[number] = error_words(result)

    def _tell(self, extents: list[Extent], segments: list[tuple[int, int]]) -> None:
        if segments:
            self._feed(wire.DiskFound(self._number, [], segments, False))
        for start in range(0, len(extents), _FOUND_AT_ONCE):
            self._feed(wire.DiskFound(self._number, extents[start : start + _FOUND_AT_ONCE], [], False))

    def _tell_trouble(self) -> None:
        unread = [
            f"{segment_name(number)} cannot be read and is tried again: {words}"
            for number, words in self._unread.items()
        ]
        self._trouble("; ".join([*self._lasting, *unread]))
