"""A process that fills a store until it is killed: `python -m support.disk_child FOLDER FIRST_NUMBER SEED`.

Prints what it is about to reclaim, and each extent once its write is acknowledged. One system call per line, so that no
line is cut by a kill.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from blockyard.worker.disk.errors import NoRoom
from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory
from support.disk_bench import SHAPES, open_store, put


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(folder: Path, number: int, seed: int) -> None:
    store, started = open_store(RealDirectory(folder, direct=probe(folder).direct), seed=seed)
    for segment in started.to_scan:
        store.scan(segment)
    while True:
        try:
            extent = put(store, number, SHAPES[number % len(SHAPES)])
        except NoRoom:
            oldest = store.segments()[0].number
            say(f"reclaim {oldest}")
            store.reclaim(oldest)
        else:
            say(f"put {number} {extent.segment} {extent.offset} {extent.seq}")
            number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
