"""An engine over a worker core with disks, in one line each: it asks, waits, and pushes chunks out of the pool.

Owns the words of the disk tier's tests; devices are those of disk_device.
"""

from __future__ import annotations

from blockyard.common.messages import attach
from blockyard.common.messages.states import KeyState
from blockyard.common.slot_table import PAGE
from blockyard.worker.core import instructions
from blockyard.worker.core.disk import wire
from blockyard.worker.disk.format.values import Shape
from support.disk_device import DiskNode
from support.worker_core import Engine, answer, keys, run

HIT, GONE, LATE, OFF = KeyState.HIT, KeyState.EVICTED_DISK, KeyState.DEADLINE, KeyState.DISABLED
SHAPE = Shape(b"f" * 32, "tiny", 0, 256, 0, 1, 1, PAGE)


def asks(engine: Engine, wanted: list[bytes], wait_ms: int = 500, seq: int = 1) -> list[instructions.Instruction]:
    return engine.says(attach.Acquire(seq, "request", [run(wanted)], wait_ms))


def states(out: list[instructions.Instruction]) -> list[KeyState]:
    return [KeyState(state) for state in answer(out, attach.Grant).states]


def silent(out: list[instructions.Instruction]) -> bool:
    return not any(isinstance(one, instructions.Send) for one in out)


def spilt(node: DiskNode, engine: Engine, wanted: list[bytes]) -> None:
    """Stored, checked and written."""
    engine.store(wanted)
    node.check()
    node.wait(0.1)
    node.settle(wire.WriteExtent)


def pushed_out(slots: int = 4, **changes: object) -> tuple[DiskNode, Engine]:
    """Keys 1 to 4 are on disk alone; the pool is full of others."""
    node = DiskNode(slots, **changes)  # type: ignore[arg-type]
    engine = node.engine()
    spilt(node, engine, keys(1, 2, 3, 4))
    spilt(node, engine, keys(*range(101, 101 + slots)))
    return node, engine
