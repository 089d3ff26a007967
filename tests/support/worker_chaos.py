"""Random lives of a worker core: engines that come, copy, fail, lie and die, with a memory of their own.

Owns what the core cannot see: which process is really copying where, and what the pool's pages really hold. So a slot
that is given away under a copy, or a hit on other bytes, is found whatever the core's own books say.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from blockyard.common.fencing import Epoch
from blockyard.common.identity import split_keys
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState
from blockyard.common.slot_table import PAGE, SlotState
from blockyard.worker.core import events, instructions
from support.worker_core import BOOT, Engine, Node, keys, run

NAMES = ("a", "b", "c")
WORLDS = {"a": (b"f" * 32, 2, 1), "b": (b"f" * 32, 2, 1), "c": (b"g" * 32, 1, 3)}
"""Fingerprint, ranks and pages of one area, by engine."""

LIMITS: dict[str, Any] = {
    "max_pins_per_engine": 12,
    "max_fills_per_engine": 9,
    "max_parked": 3,
    "max_hints_per_session": 2,
    "max_jobs_per_engine": 6,
    "max_ghosts": 5,
    "outbox_changes": 6,
    "outbox_deltas": 3,
    "snapshot_parts_per_tick": 2,
    "snapshot_part_keys": 2,
    "digest_interval": 1.0,
    "max_copies_per_session": 4,
}

OK = CopyState.OK


@dataclass
class Copying:
    """A copy that a process really has under way."""

    session: int
    message: attach.Resolve
    places: attach.Resolved
    pages: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """First page of each area: (generation, key)."""


class Chaos:
    """One seed's life. `step` does something at random; `heal` ends everything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = self.new_node()
        self.engines = {name: self.new_engine(name) for name in NAMES}
        self.alive: dict[int, tuple[str, int | None]] = {}
        """Sessions whose process lives: engine and rank."""
        self.asked: dict[tuple[int, int], attach.Resolve] = {}
        self.copying: dict[tuple[int, str, int], Copying] = {}
        self.memory: dict[int, bytes] = {}
        self.generations: set[int] = set()
        self.grants: list[tuple[str, int, list[bytes]]] = []
        self.jobs: list[tuple[str, int, list[bytes]]] = []
        self.next = 1
        self.wanted: dict[int, list[bytes]] = {0: []}
        """Keys of each Acquire, by its number."""

    def new_node(self) -> Node:
        return Node(slots=16, per_slab=4, **LIMITS)

    def new_engine(self, name: str) -> Engine:
        world, ranks, pages = WORLDS[name]
        groups = [attach.GroupShape(0, 256, pages * PAGE)]
        return Engine(self.node, name, ranks, fingerprint=world, groups=groups)

    def do(self, event: events.Event) -> None:
        """One event, and what the outside world makes of the answer."""
        for one in self.node.do(event):
            if isinstance(one, instructions.WriteSlot):
                self.see_record(one)
            elif isinstance(one, instructions.CloseSession):
                pass  # its process lives on, with what it copies
            elif isinstance(one, instructions.Send):
                self.see_message(one.session, one.message)

    def see_record(self, written: instructions.WriteSlot) -> None:
        """A slot's owner may not change under a copy, and each has a generation that none had before."""
        record = written.record
        if record.state in (SlotState.FREE, SlotState.FILLING):
            assert record.generation not in self.generations, "a generation came back"
        self.generations.add(record.generation)
        for pages in self.under_copy():
            for place, (generation, _) in pages.items():
                inside = record.offset <= place < record.offset + record.slot_bytes
                assert not inside or generation == record.generation, "slot changed hands under a copy"

    def under_copy(self) -> list[dict[int, tuple[int, bytes]]]:
        """The first pages of areas that something really copies to or from."""
        return [copy.pages for copy in self.copying.values()]

    def see_message(self, session: int, message: attach.ToEngine) -> None:
        if isinstance(message, attach.Grant) and message.grant:
            name, _ = self.alive[session]
            self.grants.append((name, message.grant, self.wanted[message.seq]))
        elif isinstance(message, attach.Resolved):
            ask = self.asked.pop((session, message.seq))
            if any(state == OK for state in message.states):
                self.begin_copy(session, ask, message)

    def begin_copy(self, session: int, ask: attach.Resolve, places: attach.Resolved) -> None:
        name, rank = self.alive[session]
        assert rank is not None
        size = WORLDS[name][2] * PAGE
        copy = Copying(session, ask, places)
        for i, key in enumerate(split_keys(ask.keys)):
            if places.states[i] != OK:
                continue
            area = places.offsets[i] + rank * size
            for other in self.copying.values():
                generation, kind = places.generations[i], (ask.kind, other.message.kind)
                clash = other.pages.get(area)
                assert clash is None or (clash[0] == generation and kind == ("load", "load"))
            if ask.kind == "store":
                self.memory[area] = b"half written"
            else:
                assert self.memory[area] == key, "a load was shown other bytes"
            copy.pages[area] = (places.generations[i], key)
        self.copying[session, ask.kind, ask.job] = copy

    def end_copy(self, copy: Copying, states: list[int]) -> None:
        """What the process really did; it may or may not get to say so."""
        del self.copying[copy.session, copy.message.kind, copy.message.job]
        for i, (area, (_, key)) in enumerate(copy.pages.items()):
            if copy.message.kind == "load":
                assert self.memory[area] == key, "bytes changed under a load"
            elif states[i] == OK:
                self.memory[area] = key

    def end_process(self, session: int) -> None:
        """Whatever the session had under way stops."""
        for copy in [one for one in self.copying.values() if one.session == session]:
            self.end_copy(copy, [CopyState.DETACHED] * len(copy.pages))
        self.alive.pop(session, None)

    @property
    def actions(self) -> tuple[list[Callable[[Any], None]], list[float]]:
        """What may happen, and how often."""
        return ACTIONS, WEIGHTS

    # -- what may happen ----------------------------------------------------------------------------------

    def step(self) -> None:
        actions, weights = self.actions
        self.random.choices(actions, weights)[0](self)

    def attach(self) -> None:
        name = self.random.choice(NAMES)
        engine, rank = self.engines[name], self.random.choice([None, *range(WORLDS[name][1])])
        old = engine.scheduler if rank is None else engine.ranks.get(rank, 0)
        if self.node.core.book.live(old) is not None and self.random.random() < 0.95:
            return
        known = old in self.node.core.book.sessions
        previous = old if known and self.random.random() < 0.7 else 0
        if previous:
            self.end_process(previous)
        named = {"previous": previous, "previous_boot": BOOT}
        hello = engine.scheduler_hello(**named) if rank is None else engine.rank_hello(rank, **named)
        self.node.last_session += 1
        session = self.node.last_session
        self.alive[session] = (name, rank)
        self.do(events.AttachAsked(session, hello))
        if session in self.node.core.book.sessions or session in self.node.core.book.waiting:
            if rank is None:
                engine.scheduler = session
            else:
                engine.ranks[rank] = session

    def some_keys(self, name: str) -> list[bytes]:
        first = 100 * (name == "c") + self.random.randrange(12)
        return keys(*range(first, first + self.random.randint(1, 6)))

    def fill(self) -> None:
        name = self.random.choice(NAMES)
        wanted = self.some_keys(name)
        self.next += 1
        self.jobs = [*self.jobs[-9:], (name, self.next, wanted)]
        if self.random.random() < 0.3:
            self.resolve()
        parent = self.random.choice([b"", *self.some_keys(name)])
        message = attach.Fill(self.next, f"r{self.next % 4}", [run(wanted, 0, parent)])
        self.do(events.Received(self.engines[name].scheduler, message))

    def resolve(self) -> None:
        load = bool(self.grants) and self.random.random() < 0.5
        if not load and not self.jobs:
            return
        name, number, wanted = self.random.choice((self.grants if load else self.jobs)[-4:])
        rank = self.random.choice(list(self.engines[name].ranks.items()) or [(0, 0)])[1]
        self.next += 1
        job, grant = (self.random.choice((self.next, 5)), number) if load else (number, 0)
        ask = attach.Resolve(
            self.next, job, "load" if load else "store", grant, b"".join(wanted), self.random.choice((0, 400))
        )
        self.asked[rank, self.next] = ask
        self.do(events.Received(rank, ask))

    def done(self) -> None:
        if not self.copying:
            return
        copy = self.random.choice(list(self.copying.values()))
        good = self.random.random() < 0.8
        states = [OK if good else self.random.choice(list(CopyState)) for _ in copy.places.states]
        self.end_copy(copy, [s for s, told in zip(states, copy.places.states, strict=True) if told == OK])
        kind = attach.StoreDone if copy.message.kind == "store" else attach.LoadDone
        for _ in range(self.random.choice((1, 1, 1, 2))):
            self.do(events.Received(copy.session, kind(copy.message.job, bytes(states), 1, 1)))

    def acquire(self) -> None:
        name = self.random.choice(NAMES)
        self.next += 1
        wanted = self.wanted[self.next] = self.some_keys(name)
        session = self.engines[name].scheduler
        waits = self.random.choice((0, 200, 5000)) if self.node.core.disk.enabled else 0
        message = attach.Acquire(self.next, f"r{self.random.randrange(4)}", [run(wanted)], waits)
        self.do(events.Received(session, message))
        self.grants = self.grants[-9:]

    def let_go(self) -> None:
        if self.random.random() < 0.5 or not self.grants:
            name = self.random.choice(NAMES)
            kinds = (attach.Finish, attach.Finish, attach.Hints)
            message: attach.FromEngine = self.random.choice(kinds)(f"r{self.random.randrange(4)}")
        else:
            name, grant, wanted = self.random.choice(self.grants)
            message = attach.Release(grant, self.random.choice((b"", wanted[0])))
        self.do(events.Received(self.engines[name].scheduler, message))

    def close(self) -> None:
        if self.alive:
            self.do(events.SessionClosed(self.random.choice(list(self.alive))))

    def die(self) -> None:
        if self.alive:
            session = self.random.choice(list(self.alive))
            self.end_process(session)
            self.do(events.ProcessGone(session))

    def bye(self) -> None:
        if self.alive:
            session = self.random.choice(list(self.alive))
            self.end_process(session)
            self.do(events.Received(session, attach.Bye()))

    def checksum(self) -> None:
        for order in self.random.sample(self.node.to_check, min(3, len(self.node.to_check))):
            self.node.to_check.remove(order)
            if self.random.random() < 0.1:
                self.do(events.ChecksumFailed(order.slot, order.generation, "i/o error"))
            else:
                sums = tuple(range(order.areas))
                self.do(events.ChecksumDone(order.slot, order.generation, sums))

    def tick(self) -> None:
        self.node.now += self.random.choice((0.1, 0.5, 0.5, 4.0))
        self.do(events.Tick())

    def forget(self) -> None:
        self.do(events.Received(self.engines[self.random.choice(NAMES)].scheduler, attach.Forget("new weights")))

    def nonsense(self) -> None:
        session = self.random.randrange(self.node.last_session + 2)
        number = self.random.randrange(self.next + 3)
        junk: list[events.Event] = [
            events.Received(session, attach.StoreDone(number, b"\x63\x00", 1, 1)),
            events.Received(session, attach.LoadDone(number, b"", 1, 1)),
            events.Received(session, attach.Release(number)),
            events.Received(session, attach.Acquire(0, "r", [attach.Run(9, 0, b"", bytes(32))])),
            events.Received(session, attach.Fill(number, "r", [attach.Run(0, 0, b"", b"ragged")])),
            events.ChecksumDone(number % 16, number, (1,)),
            events.ChecksumFailed(number % 16, number, "outdated"),
            events.LinkAcked(number),
            events.SessionClosed(99_999),
            events.ProcessGone(99_999),
        ]
        chosen = self.random.choice(junk)
        if isinstance(chosen, events.Received) and isinstance(chosen.message, attach.StoreDone | attach.LoadDone):
            kind = "store" if isinstance(chosen.message, attach.StoreDone) else "load"
            if (session, kind, number) in self.copying:
                return  # a process that says it has ended while it has not is beyond help
        self.do(chosen)

    def leader(self) -> None:
        seq = self.node.core.next_seq
        self.do(
            self.random.choice(
                [
                    events.LinkUp(Epoch(b"u" * 16, 1), self.random.choice((0, seq, max(0, seq - 2)))),
                    events.LinkDown(),
                    events.LinkAcked(seq - self.random.choice((1, 2))),
                    events.ResyncAsked(self.random.choice((0, seq - 1, seq, seq + 3))),
                    events.SnapshotCredited(self.random.choice((seq - 2, seq - 1, seq)), self.random.randrange(6)),
                    events.RepairAsked(bytes(self.random.choices(range(4), k=2))),
                    events.Incarnated(self.next),
                ]
            )
        )

    def heal(self) -> None:
        """Every process dies, every checksum comes, and time passes."""
        for session in range(1, self.node.last_session + 1):
            self.end_process(session)
            self.do(events.ProcessGone(session))
        while self.node.to_check:
            self.checksum()
        self.node.now += 1000
        self.do(events.Tick())


ACTIONS: list[Callable[[Chaos], None]] = [
    Chaos.attach,
    Chaos.fill,
    Chaos.resolve,
    Chaos.done,
    Chaos.acquire,
    Chaos.let_go,
    Chaos.close,
    Chaos.die,
    Chaos.bye,
    Chaos.checksum,
    Chaos.tick,
    Chaos.forget,
    Chaos.nonsense,
    Chaos.leader,
]
WEIGHTS = [20, 12, 40, 40, 16, 4, 0.7, 0.7, 0.2, 12, 5, 0.3, 2, 3]
