"""A worker core driven by hand: engines that fill, store and load in one line each, every step validated.

Owns time and the checksums that a shell would compute. Shows the slot table as the instructions left it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import PAGE, SlotRecord, SlotState
from blockyard.worker.core import events, instructions
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.worker import WorkerCore

BOOT = b"boot-id-16-bytes"
OK = CopyState.OK


def keys(*numbers: int) -> list[bytes]:
    """Keys that are easy to tell from others."""
    return [number.to_bytes(DIGEST_BYTES, "big") for number in numbers]


def run(wanted: list[bytes], group: int = 0, parent: bytes = b"", prefix: bool = True) -> attach.Run:
    return attach.Run(group, 0, parent, b"".join(wanted), prefix)


class Node:
    """One worker. `slots` of one page each, in slabs of `per_slab`; all waits are 10 s unless said otherwise."""

    def __init__(self, slots: int = 8, per_slab: int = 4, **settings: Any) -> None:
        sizes = {"pool_bytes": slots * PAGE, "slab_bytes": per_slab * PAGE, "min_slot": PAGE}
        waits = {"pin_ttl": 10.0, "fill_deadline": 10.0}
        self.core = WorkerCore(CoreSettings(node="node-1", boot_id=BOOT, version="test", **(sizes | waits | settings)))
        self.now = 100.0
        self.last_session = 0
        self.table: dict[int, SlotRecord] = {}
        self.to_check: list[instructions.ComputeChecksum] = []

    def do(self, event: events.Event) -> list[instructions.Instruction]:
        """One event; the core's books must balance after it."""
        out = self.core.handle(self.now, event)
        self.core.validate()
        for one in out:
            if isinstance(one, instructions.WriteSlot):
                self.table[one.slot] = one.record
            if isinstance(one, instructions.ComputeChecksum):
                self.to_check.append(one)
        return out

    def wait(self, seconds: float) -> list[instructions.Instruction]:
        self.now += seconds
        return self.do(events.Tick())

    def check(self) -> None:
        """Every checksum that is waited for is computed."""
        for order in self.to_check:
            self.do(events.ChecksumDone(order.slot, order.generation, tuple(range(order.areas))))
        self.to_check.clear()

    def ask(self, hello: attach.Hello) -> tuple[int, list[instructions.Instruction]]:
        """A new session says hello."""
        self.last_session += 1
        return self.last_session, self.do(events.AttachAsked(self.last_session, hello))

    def engine(self, name: str = "a", ranks: int = 1, **changes: Any) -> Engine:
        """An engine with all its sessions attached."""
        engine = Engine(self, name, ranks, **changes)
        for rank in range(ranks):
            engine.attach_rank(rank)
        engine.attach_scheduler()
        return engine

    def states(self) -> dict[SlotState, int]:
        """Slots that are not free, by state, as the slot table shows them."""
        shown = [record.state for record in self.table.values() if record.state is not SlotState.FREE]
        return {state: shown.count(state) for state in set(shown)}

    def slot_of(self, key: bytes) -> int:
        """The slot that the table shows for a key."""
        return next(
            slot
            for slot, one in self.table.items()
            if one.key == key and one.state in (SlotState.FILLING, SlotState.READY)
        )

    def count(self, name: str, **labels: str) -> float:
        return self.core.counters.get("blockyard_worker_" + name, **labels)


class Engine:
    """One engine of a node. Jobs and sequence numbers count up by themselves."""

    def __init__(self, node: Node, name: str, ranks: int, **changes: Any) -> None:
        self.node = node
        self.hello = attach.Hello(
            protocol_min=1,
            protocol_max=1,
            version="test",
            role="rank",
            engine=name,
            model="tiny",
            rank=0,
            local_ranks=ranks,
            fingerprint=b"f" * 32,
            groups=[attach.GroupShape(0, 256, PAGE // ranks)],
            gpu_cache_bytes=0,
        )
        self.hello = msgspec.structs.replace(self.hello, **changes)
        self.ranks: dict[int, int] = {}
        self.scheduler = 0
        self.job = 0

    def rank_hello(self, rank: int, **changes: Any) -> attach.Hello:
        return msgspec.structs.replace(self.hello, rank=rank, **changes)

    def scheduler_hello(self, **changes: Any) -> attach.Hello:
        groups = [msgspec.structs.replace(group, area_bytes=0) for group in self.hello.groups]
        return msgspec.structs.replace(self.hello, role="scheduler", groups=groups, **changes)

    def attach_rank(self, rank: int, **changes: Any) -> list[instructions.Instruction]:
        self.ranks[rank], out = self.node.ask(self.rank_hello(rank, **changes))
        return out

    def attach_scheduler(self, **changes: Any) -> list[instructions.Instruction]:
        self.scheduler, out = self.node.ask(self.scheduler_hello(**changes))
        return out

    def says(self, message: attach.FromEngine, rank: int | None = None) -> list[instructions.Instruction]:
        """The scheduler, or a rank, sends a message."""
        session = self.scheduler if rank is None else self.ranks[rank]
        return self.node.do(events.Received(session, message))

    def fill(self, wanted: list[bytes], group: int = 0, parent: bytes = b"") -> int:
        """Reserve; returns the job."""
        self.job += 1
        self.says(attach.Fill(self.job, "request", [run(wanted, group, parent)]))
        return self.job

    def resolve_store(self, job: int, wanted: list[bytes], rank: int = 0, wait_ms: int = 0) -> attach.Resolved:
        out = self.says(attach.Resolve(7, job, "store", 0, b"".join(wanted), wait_ms), rank)
        return answer(out, attach.Resolved)

    def resolve_load(self, job: int, grant: int, wanted: list[bytes], rank: int = 0) -> attach.Resolved:
        out = self.says(attach.Resolve(8, job, "load", grant, b"".join(wanted), 0), rank)
        return answer(out, attach.Resolved)

    def store_done(self, job: int, *states: int, rank: int = 0) -> list[instructions.Instruction]:
        return self.says(attach.StoreDone(job, bytes(states), 10, 20), rank)

    def load_done(self, job: int, *states: int, rank: int = 0) -> list[instructions.Instruction]:
        return self.says(attach.LoadDone(job, bytes(states), 10, 20), rank)

    def store(self, wanted: list[bytes], group: int = 0, parent: bytes = b"") -> list[CopyState]:
        """Store by all ranks up to the commit; what the last rank was told of each key."""
        job = self.fill(wanted, group, parent)
        told = [CopyState(0)] * len(wanted)
        places = {rank: self.resolve_store(job, wanted, rank) for rank in self.ranks}
        for rank, place in places.items():
            told = [CopyState(state) for state in place.states]
            if OK in told:
                self.store_done(job, *[OK] * len(wanted), rank=rank)
        return told

    def acquire(self, wanted: list[bytes], request: str = "request", **changes: Any) -> attach.Grant:
        out = self.says(attach.Acquire(1, request, [run(wanted, **changes)]))
        return answer(out, attach.Grant)

    def sees(self, wanted: list[bytes], **changes: Any) -> list[KeyState]:
        """Look without keeping a pin."""
        grant = self.acquire(wanted, **changes)
        self.says(attach.Release(grant.grant))
        return [KeyState(state) for state in grant.states]

    def loading(self, wanted: list[bytes]) -> tuple[int, int]:
        """Acquire, and let rank 0 begin to load; returns grant and job."""
        grant = self.acquire(wanted).grant
        self.job += 1
        states = self.resolve_load(self.job, grant, wanted).states
        assert states == bytes(len(wanted)), states
        return grant, self.job

    def pins(self) -> int:
        """Pins that any grant of this worker holds."""
        return sum(len(grant.chunks) for grant in self.node.core.grants.grants.values())


def answer(out: list[instructions.Instruction], kind: type[Any]) -> Any:
    """The one message of this kind that was sent."""
    sent = [one.message for one in out if isinstance(one, instructions.Send)]
    (message,) = [one for one in sent if isinstance(one, kind)]
    return message
