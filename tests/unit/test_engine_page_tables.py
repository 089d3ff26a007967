"""Page tables are filled behind the worker, never ahead of it."""

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator

import pytest

from blockyard.engine.copies import page_tables
from blockyard.engine.copies.page_tables import PIECE, PageTables, wait_resident

SIZE = 2 * PIECE + 4096


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, mmap.mmap, int]]:
    """Descriptor, the worker's mapping and the address of the engine's."""
    monkeypatch.setattr(page_tables, "FOLLOW_SECONDS", 0.01)
    descriptor = os.memfd_create("pool")
    os.ftruncate(descriptor, SIZE)
    with mmap.mmap(descriptor, SIZE) as workers, mmap.mmap(descriptor, SIZE) as engines:
        yield descriptor, workers, ctypes.addressof(ctypes.c_char.from_buffer(engines))
    os.close(descriptor)


def blocks_in_memory(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_it_waits_for_the_worker_and_then_ends(pool: tuple[int, mmap.mmap, int]) -> None:
    descriptor, workers, address = pool
    tables = PageTables(address, SIZE)
    tables._thread.join(0.1)
    assert tables._thread.is_alive()
    assert blocks_in_memory(descriptor) == 0, "nothing is taken that the worker has not taken"
    workers[:PIECE] = bytes(PIECE)
    tables._thread.join(0.1)
    assert blocks_in_memory(descriptor) == PIECE
    workers[PIECE:] = bytes(SIZE - PIECE)
    tables._thread.join(20)
    assert not tables._thread.is_alive()
    tables.stop()


def test_stop_ends_the_waiting(pool: tuple[int, mmap.mmap, int]) -> None:
    _, _, address = pool
    tables = PageTables(address, SIZE)
    tables.stop()
    assert not tables._thread.is_alive()
    stopped = threading.Event()
    stopped.set()
    assert not wait_resident(address, SIZE, stopped)
