"""A rank's side of an attachment: one thread that owns the session, the mapped pool and every copy.

`submit`, `finished` and `wait` are called by the engine's thread and never raise because of the link. A result is
given only once nothing of its job is in flight.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from blockyard.common.messages.attach import GroupShape
from blockyard.engine.copies.base import DeviceCopier
from blockyard.engine.identity import EngineIdentity
from blockyard.engine.jobs import CopyJob, CopyResult

Verify = Literal["off", "sample", "always"]


class RankClient:
    """Attach with `start`; then submit jobs and take their results."""

    def __init__(
        self,
        socket_path: str | Path,
        identity: EngineIdentity,
        rank: int,
        local_ranks: int,
        shapes: list[GroupShape],
        copier: DeviceCopier,
        verify: Verify = "off",
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

    def start(self) -> None:
        """Start the copy thread, which attaches in the background."""

    def close(self, timeout: float = 5.0) -> bool:
        """End every job, say goodbye, unmap; False if a copy still runs after `timeout`."""
        ...

    def submit(self, job: CopyJob) -> None:
        """Queue a job. While detached or with a full queue its result is there at once."""

    def finished(self) -> list[CopyResult]:
        """Results since the last call; never waits."""
        ...

    def wait(self, jobs: set[int], timeout: float) -> bool:
        """True once nothing of these jobs is in flight (results still come by `finished`).

        Jobs that wait in the queue are cancelled at once. A running one may end whole within `timeout`; past it, it
        is cut after the chunk being copied and False is returned: wait again.
        """
        ...
