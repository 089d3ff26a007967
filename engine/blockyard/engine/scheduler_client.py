"""The scheduler's side of an attachment: what is there, pins, fills, counters.

Every call is made by one thread, the engine's scheduler; a background thread only connects and watches for hang-ups.
No call raises because of the link, except `grant`, which says `Detached`; a call while detached costs microseconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blockyard.common.messages.attach import GroupShape, Run
from blockyard.engine.identity import EngineIdentity


@dataclass(frozen=True, slots=True)
class Grant:
    """Answer to one acquire: a KeyState byte per key, runs one after the other.

    Hits are pinned under `number` (0: nothing pinned), which a rank's load job names. `attachment` keeps a grant
    of an earlier session from being taken for one of the present.
    """

    number: int
    states: bytes
    attachment: int


class SchedulerClient:
    """Attach with `start`; then ask, fill and release in step with the scheduler."""

    def __init__(
        self,
        socket_path: str | Path,
        identity: EngineIdentity,
        shapes: list[GroupShape],
        local_ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None: ...

    @property
    def state(self) -> str:
        """`attached` or `detached`."""
        ...

    @property
    def detached_reason(self) -> str:
        """Bounded word for metrics (see detached.py); empty while attached."""
        ...

    @property
    def detached_detail(self) -> str:
        """One line for people; empty while attached."""
        ...

    @property
    def pin_ttl(self) -> float:
        """Seconds that a grant's pins stand, as the worker said; 0 while detached."""
        ...

    def start(self) -> None:
        """Begin attaching in the background."""

    def close(self, timeout: float = 2.0) -> None:
        """Say goodbye and end the background thread."""

    def acquire(self, request: str, runs: list[Run]) -> int | None:
        """Ask for these runs to be pinned; a number for `grant`, or None: detached, or more than MAX_KEYS keys."""
        ...

    def grant(self, seq: int, timeout: float = 0.0) -> Grant | None:
        """The answer to `acquire`, None if it is not there within `timeout`. Raises Detached when it never comes."""
        ...

    def abandon(self, seq: int) -> None:
        """Nobody will ask for this answer any more: what it pins is released when it comes."""

    def release(self, grant: Grant, keys: bytes = b"") -> None:
        """Unpin these keys of a grant, or all of it; nothing happens if the grant's session is gone."""

    def fill(self, job: int, request: str, runs: list[Run]) -> bool:
        """Announce what the ranks are about to store under `job`; False if detached: submit no such job."""
        ...

    def finish(self, request: str) -> None:
        """The request is over: nothing stays pinned for it."""

    def forget(self, reason: str) -> None:
        """Drop every chunk of this engine's fingerprint."""

    def count(self, name: str, label: str = "", value: float = 1) -> None:
        """Add to one of the engine's counters (metric name, value of its only label)."""

    def flush(self) -> None:
        """Send what has been counted, and notice an overdue answer; call once per step."""
