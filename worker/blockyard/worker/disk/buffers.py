"""Memory at page boundaries, as direct reads and writes want it. Owns a few pages; must never know their use."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from blockyard.common.slot_table import PAGE


def aligned(size: int) -> memoryview:
    """Zeroed memory that begins at a page boundary; freed when nothing refers to it."""
    return memoryview(mmap.mmap(-1, size))


class HeaderPages:
    """Single pages, used again: one per thread that reads or writes at the time."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []
        self._lock = threading.Lock()

    @contextmanager
    def page(self) -> Iterator[memoryview]:
        """A page to use until the block ends; what it holds is left over from before."""
        with self._lock:
            page = self._free.pop() if self._free else aligned(PAGE)
        try:
            yield page
        finally:
            with self._lock:
                self._free.append(page)
