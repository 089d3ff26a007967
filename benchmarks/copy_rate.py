"""Store and load of the CPU copier against one-thread memcpy of the same bytes.

Two yardsticks, because memcpy itself has two speeds: `whole` is one call over all bytes (glibc then writes past the
caches), `pieces` is one call for each tensor's share of a chunk, or for each page where pages are scattered, between
the same places that the copier uses. Rounds are interleaved (A B C A B C ...), medians are taken of the CPU time of
the copying thread and of the wall clock. The pool is a memfd mapping, touched before.

    python benchmarks/copy_rate.py [--rounds 15] [--json FILE]
"""

import argparse
import ctypes
import json
import mmap
import os
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch

from blockyard.engine.copies.base import GroupPages, PagedTensor
from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.jobs import BlockRange

PAGE = 16 << 10
PAGES_PER_CHUNK = 16
TENSORS = 8
CHUNKS = 24
BLOCKS = 1024
TOTAL = PAGE * PAGES_PER_CHUNK * TENSORS * CHUNKS

memcpy = ctypes.CDLL(None).memcpy
memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
memcpy.restype = None

Calls = list[tuple[int, int, int]]


class Setting:
    """Tensors, pool and copier of one run."""

    def __init__(self) -> None:
        self.tensors = [torch.randint(-128, 128, (BLOCKS, PAGE), dtype=torch.int8) for _ in range(TENSORS)]
        group = GroupPages(0, [PagedTensor(tensor, PAGE) for tensor in self.tensors], PAGES_PER_CHUNK)
        self.copier = CpuCopier([group])
        self.area = group.area_bytes
        descriptor = os.memfd_create("copy-rate")
        os.ftruncate(descriptor, TOTAL)
        self.pool = memoryview(mmap.mmap(descriptor, TOTAL))
        os.close(descriptor)
        self.base = torch.frombuffer(self.pool, dtype=torch.int8).fill_(1).data_ptr()
        self.copier.bind(self.pool)
        self.plain = torch.ones(TOTAL, dtype=torch.int8)

    def store(self, chunks: list[list[int]]) -> None:
        for at, blocks in enumerate(chunks):
            self.copier.store(BlockRange(blocks), at * self.area)

    def load(self, chunks: list[list[int]]) -> None:
        for at, blocks in enumerate(chunks):
            self.copier.load(at * self.area, BlockRange(blocks))

    def pieces(self, chunks: list[list[int]], pages_per_call: int) -> Calls:
        """(pool address, tensor address, bytes) of each call."""
        share = PAGE * PAGES_PER_CHUNK
        return [
            (
                self.base + at * self.area + t * share + i * PAGE,
                tensor.data_ptr() + blocks[i] * PAGE,
                pages_per_call * PAGE,
            )
            for at, blocks in enumerate(chunks)
            for t, tensor in enumerate(self.tensors)
            for i in range(0, PAGES_PER_CHUNK, pages_per_call)
        ]


def into_pool(calls: Calls) -> None:
    for pool, tensor, size in calls:
        memcpy(pool, tensor, size)


def out_of_pool(calls: Calls) -> None:
    for pool, tensor, size in calls:
        memcpy(tensor, pool, size)


def measure(subjects: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, float]]:
    """Median GB/s per subject, by CPU time and by wall clock."""
    cpu: dict[str, list[float]] = {name: [] for name in subjects}
    wall: dict[str, list[float]] = {name: [] for name in subjects}
    for round_number in range(rounds + 1):
        for name, subject in subjects.items():
            wall_begun, cpu_begun = time.perf_counter(), time.thread_time()
            subject()
            if round_number:  # The first round warms caches and page tables.
                cpu[name].append(time.thread_time() - cpu_begun)
                wall[name].append(time.perf_counter() - wall_begun)
    return {
        name: {
            "cpu_gb_per_s": round(TOTAL / statistics.median(cpu[name]) / 1e9, 2),
            "wall_gb_per_s": round(TOTAL / statistics.median(wall[name]) / 1e9, 2),
        }
        for name in subjects
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="file to write the numbers to")
    options = parser.parse_args()

    setting = Setting()
    order = list(range(BLOCKS))
    random.Random(1).shuffle(order)
    whole = range(0, CHUNKS * PAGES_PER_CHUNK, PAGES_PER_CHUNK)
    neighbours = [list(range(i, i + PAGES_PER_CHUNK)) for i in whole]
    scattered = [order[i : i + PAGES_PER_CHUNK] for i in whole]
    in_shares, in_pages = setting.pieces(neighbours, PAGES_PER_CHUNK), setting.pieces(scattered, 1)
    rates = measure(
        {
            "memcpy whole": lambda: memcpy(setting.base, setting.plain.data_ptr(), TOTAL),
            "store neighbours": lambda: setting.store(neighbours),
            "memcpy into pool, pieces, neighbours": lambda: into_pool(in_shares),
            "load neighbours": lambda: setting.load(neighbours),
            "memcpy out of pool, pieces, neighbours": lambda: out_of_pool(in_shares),
            "store scattered": lambda: setting.store(scattered),
            "memcpy into pool, pieces, scattered": lambda: into_pool(in_pages),
            "load scattered": lambda: setting.load(scattered),
            "memcpy out of pool, pieces, scattered": lambda: out_of_pool(in_pages),
        },
        options.rounds,
    )
    yardsticks = {"store": "into", "load": "out of"}
    ratios = {}
    for name in [name for name in rates if not name.startswith("memcpy")]:
        kind, places = name.split()
        pieces = f"memcpy {yardsticks[kind]} pool, pieces, {places}"
        own = rates[name]["cpu_gb_per_s"]
        ratios[name] = {
            "to_pieces": round(own / rates[pieces]["cpu_gb_per_s"], 2),
            "to_whole": round(own / rates["memcpy whole"]["cpu_gb_per_s"], 2),
        }
    for name, rate in rates.items():
        print(f"{name:42} {rate['cpu_gb_per_s']:6.2f} GB/CPU-s {rate['wall_gb_per_s']:6.2f} GB/s")
    for name, ratio in ratios.items():
        print(f"{name:20} {ratio['to_pieces']:5.2f} of memcpy in pieces, {ratio['to_whole']:5.2f} of memcpy in one")
    result = {"bytes": TOTAL, "page": PAGE, "torch_threads": torch.get_num_threads(), "rates": rates, "ratios": ratios}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
