"""Question: does it matter for direct reads what pages the memory is made of that they read into?

One file, read by four threads in blocks of an extent with 2 MiB of payload, into shared memory as the host pool is
(pages of 4 KiB, unless the machine's shmem_enabled says otherwise), into the same after MADV_COLLAPSE has made huge
pages of it, and into private memory with and without huge pages. Kinds take turns within each round, in an order drawn
at random.

    python benchmarks/direct_memory.py [--rounds 12] [--folder DIR]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import statistics
import sys
import tempfile
import threading
import time

MIB = 1 << 20
HUGE = 2 * MIB
BLOCK = 2 * MIB + 4096
BLOCKS, PLACES, THREADS = 128, 64, 4
SIZE = (PLACES * BLOCK + HUGE - 1) // HUGE * HUGE

_MADV_COLLAPSE = 25
_MAP_FIXED = 0x10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def private(advice: int) -> memoryview:
    """Memory of this process alone."""
    memory = mmap.mmap(-1, SIZE + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    return memoryview(memory)


def shared(collapse: bool) -> memoryview:
    """A memfd. It is collapsed through a second mapping that begins where a huge page does."""
    fd = os.memfd_create("direct-memory")
    os.posix_fallocate(fd, 0, SIZE)
    memory = memoryview(mmap.mmap(fd, SIZE))
    if collapse:
        reserved = _libc.mmap(None, SIZE + HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        start = (reserved + HUGE - 1) // HUGE * HUGE
        _libc.mmap(start, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
        if _libc.madvise(start, SIZE, _MADV_COLLAPSE):
            raise SystemExit(f"MADV_COLLAPSE: {os.strerror(ctypes.get_errno())}")
    return memory


def read_all(fd: int, memory: memoryview) -> float:
    """Seconds."""
    blocks = iter(range(BLOCKS))

    def share() -> None:
        for number in blocks:
            place = number % PLACES * BLOCK
            if os.preadv(fd, [memory[place : place + BLOCK]], number * BLOCK) != BLOCK:
                raise OSError(f"block {number} is cut short")

    threads = [threading.Thread(target=share) for _ in range(THREADS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--folder", help="on the file system to measure; else where temporary files lie")
    options = parser.parse_args()
    kinds = {
        "shared": shared(collapse=False),
        "shared, huge": shared(collapse=True),
        "private": private(mmap.MADV_NOHUGEPAGE),
        "private, huge": private(mmap.MADV_HUGEPAGE),
    }
    with tempfile.TemporaryDirectory(prefix="by-direct-", dir=options.folder) as folder:
        fd = os.open(f"{folder}/blocks", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        os.posix_fallocate(fd, 0, BLOCKS * BLOCK)
        memory = kinds["private, huge"]
        for number in range(BLOCKS):
            memory[:BLOCK] = os.urandom(BLOCK)
            os.pwritev(fd, [memory[:BLOCK]], number * BLOCK)
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(options.rounds + 1):
            for kind in random.sample(list(kinds), len(kinds)):
                seconds = read_all(fd, kinds[kind])
                if turn:
                    times[kind].append(seconds)
        os.close(fd)
    rates = {kind: round(BLOCKS * BLOCK / 1e9 / statistics.median(one), 2) for kind, one in times.items()}
    print(json.dumps({"rounds": options.rounds, "gb_per_s": rates, "load_average": os.getloadavg()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
