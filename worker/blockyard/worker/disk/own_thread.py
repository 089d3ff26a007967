"""Work that may never return, on a thread of its own. Owns that thread; must never know what the work is.

A thread that hangs in a system call cannot be ended: it is left behind, and does not hold up the end of its process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def on_own_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Begin it; the future has what it returns or raises. Whoever waits for that sets a deadline."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
