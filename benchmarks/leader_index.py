"""What the leader's ownership index costs per change, and how long the garbage collector stops it: without sockets.

Workers with chains as in the scale run, so that a fifth of what each holds is held by others too. First every worker's
chunks, as snapshots bring them; then batches of 20 changes from each in turn: decoded from a frame, applied and entered
in the journal, with the collector on and the index frozen as in the leader's process. CPU time, as JSON.

    .venv/bin/python benchmarks/leader_index.py [--workers 1000] [--chunks 2000]
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import Any

from blockyard.common.codec import PREFIX_BYTES, Decoder, encode
from blockyard.common.messages import cluster
from blockyard.leader.core.journal import Journal
from blockyard.leader.core.ownership import Holder, Ownership
from scale.churn import Churn
from scale.keys import Popularity

ROUNDS = 20
BATCH = 20
SIZE = 32 << 20
JOURNAL = 50_000


class Pauses:
    """CPU time of each collection, by generation."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.total = 0.0
        self._begun = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.process_time()
            return
        taken = time.process_time() - self._begun
        self.longest, self.total = max(self.longest, taken), self.total + taken


def filled(workers: int, chunks: int) -> tuple[Ownership, list[tuple[Holder, Churn]], float]:
    """An index of all that these workers hold, and the CPU-seconds that it took."""
    popularity, index = Popularity.zipf(2000, 0.2, 1.0), Ownership()
    gc.freeze()
    held, cpu = [], 0.0
    for number in range(workers):
        churn = Churn(number, chunks, popularity, 1)
        churn.fill()
        changes = [cluster.Change(key, cluster.TIER_HOST, SIZE, 0, 0) for key in churn.held_keys()]
        holder = index.open(f"worker-{number}")
        index.show(holder)
        begun = time.process_time()
        index.apply(holder, changes)
        cpu += time.process_time() - begun
        held.append((holder, churn))
    return index, held, cpu


def changed(index: Ownership, held: list[tuple[Holder, Churn]]) -> float:
    """CPU-seconds that ROUNDS batches of each worker take: decoded and applied."""
    decoder: Decoder[cluster.FromWorker] = Decoder(cluster.FromWorker)
    journal = Journal(JOURNAL)
    cpu = 0.0
    for number in range(ROUNDS):
        for holder, churn in held:
            made = [churn.change() for _ in range(BATCH)]
            changes = [cluster.Change(key, int(is_held), SIZE * is_held, 0, 0) for key, is_held in made]
            payload = encode(cluster.Delta(number + 1, [], changes), cluster.MAX_FRAME)[PREFIX_BYTES:]
            begun = time.process_time()
            message = decoder.decode(payload)
            assert isinstance(message, cluster.Delta)
            index.apply(holder, message.changes)
            journal.note(0.0, holder.node, "delta", message.changes)
            cpu += time.process_time() - begun
    return cpu


def measure(workers: int, chunks: int) -> dict[str, Any]:
    """All of it."""
    index, held, filling = filled(workers, chunks)
    pauses = Pauses()
    gc.callbacks.append(pauses)
    changing = changed(index, held)
    return {
        "keys": index.keys,
        "copies": index.copies,
        "snapshot_us_per_chunk": round(1e6 * filling / index.copies, 3),
        "delta_us_per_change": round(1e6 * changing / (ROUNDS * BATCH * workers), 3),
        "gc_longest_ms": round(1e3 * pauses.longest, 1),
        "gc_s": round(pauses.total, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--chunks", type=int, default=2000, help="of each worker")
    options = parser.parse_args()
    print(json.dumps(measure(options.workers, options.chunks)))


if __name__ == "__main__":
    main()
