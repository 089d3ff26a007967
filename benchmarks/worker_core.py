"""What the worker's machine costs per message: no sockets, no copies, only the core.

One engine with one rank over a pool that is large enough for no eviction. Each round times every message once, all in
turn, so that a slow moment of the machine falls on all of them; medians in µs of CPU time are printed as JSON.
`acquire_N` is an Acquire of N keys that are all hits, with the Release of its grant; `fill`, `resolve` and `commit`
(StoreDone) are those of one job of 16 new chunks that begin a prompt, divided by 16.

    python benchmarks/worker_core.py [--rounds 300]
"""

import argparse
import json
import statistics
import time
from collections import defaultdict

from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.messages import attach
from blockyard.common.slot_table import PAGE
from blockyard.worker.core import events, instructions
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.worker import WorkerCore

HELD = 500
JOB = 16
RANK, SCHEDULER = 1, 2


class Engine:
    """One engine attached to one core; `timed` holds the seconds of each message by its name."""

    def __init__(self, slots: int) -> None:
        size = slots * PAGE
        self.core = WorkerCore(
            CoreSettings(node="bench", boot_id=bytes(16), version="1", pool_bytes=size, slab_bytes=size, min_slot=PAGE)
        )
        self.timed: dict[str, list[float]] = defaultdict(list)
        self._now = 0.0
        self._job = 0
        for session, role, area in ((RANK, "rank", PAGE), (SCHEDULER, "scheduler", 0)):
            self._step(events.AttachAsked(session, _hello(role, area)))

    def store(self, first: int, count: int) -> None:
        """One job of new chunks, up to their checksums."""
        keys, run = _blob(first, count), _run(first, count)
        self._job += 1
        self.say("fill", SCHEDULER, attach.Fill(self._job, "store", [run]))
        self.say("resolve", RANK, attach.Resolve(1, self._job, "store", 0, keys, 0))
        orders = self.say("commit", RANK, attach.StoreDone(self._job, bytes(count), count * PAGE, 10))
        for order in orders:
            if isinstance(order, instructions.ComputeChecksum):
                self._step(events.ChecksumDone(order.slot, order.generation, (1,)))

    def look_up(self, count: int) -> None:
        """Pin so many chunks and let go of them."""
        name = f"acquire_{count}"
        (sent,) = self.say(name, SCHEDULER, attach.Acquire(1, "load", [_run(0, count)]))
        assert isinstance(sent, instructions.Send) and isinstance(sent.message, attach.Grant)
        assert not any(sent.message.states)
        self.say(f"{name}_release", SCHEDULER, attach.Release(sent.message.grant))

    def say(self, name: str, session: int, message: attach.FromEngine) -> list[instructions.Instruction]:
        """Let the core handle one message, and note how long that took."""
        began = time.thread_time()
        out = self._step(events.Received(session, message))
        self.timed[name].append(time.thread_time() - began)
        return out

    def _step(self, event: events.Event) -> list[instructions.Instruction]:
        self._now += 0.001
        return self.core.handle(self._now, event)


def _hello(role: str, area: int) -> attach.Hello:
    shape = attach.GroupShape(0, 256, area)
    return attach.Hello(1, 1, "1", role, "engine", "model", 0, 1, bytes(32), [shape], 0)  # type: ignore[arg-type]


def _blob(first: int, count: int) -> bytes:
    return b"".join(number.to_bytes(DIGEST_BYTES, "big") for number in range(first + 1, first + count + 1))


def _run(first: int, count: int) -> attach.Run:
    return attach.Run(0, 0, b"", _blob(first, count))


def measure(rounds: int) -> dict[str, float]:
    """Medians in µs: per message of acquires with their release, per chunk of the others."""
    engine = Engine(HELD + (rounds + 1) * JOB)
    engine.store(0, HELD)
    engine.timed.clear()
    for round_ in range(rounds):
        engine.look_up(50)
        engine.store(HELD + round_ * JOB, JOB)
        engine.look_up(500)
    medians = {name: 1e6 * statistics.median(times) for name, times in engine.timed.items()}
    found = {f"acquire_{n}": medians[f"acquire_{n}"] + medians[f"acquire_{n}_release"] for n in (50, 500)}
    found |= {name: medians[name] / JOB for name in ("fill", "resolve", "commit")}
    return {name: round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="times that each message is measured")
    print(json.dumps(measure(parser.parse_args().rounds)))
