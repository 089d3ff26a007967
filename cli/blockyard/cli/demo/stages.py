"""Owns what the demo shows while it works: a line with a clock for each thing under way, a line for each done.

On a terminal the lines move; in a log only the finished ones appear. It must never know what a stage does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Stages:
    """Use it as a context manager around all stages."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Several may be open at once."""
        started = time.monotonic()
        task = self._progress.add_task(what, total=None)
        try:
            yield
        finally:
            self._progress.remove_task(task)
        self.console.print(f"[green]✓[/] {what} [dim]{time.monotonic() - started:.1f} s[/]", highlight=False)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(line, highlight=False)

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
