"""Workers, leaders, engines, links and etcd in stepped time. Owns the clock and how frames and news are delivered.

Nothing happens by itself: a command feeds an event, lets time pass, or delivers what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from blockyard.leader.core import events as leader_events
from blockyard.leader.core.settings import LeaderSettings
from blockyard.worker.core import events as worker_events
from blockyard.worker.core.settings import CoreSettings
from scenarios import words
from scenarios.engine_side import Engine, Process
from scenarios.etcd import Etcd
from scenarios.leader_side import Leader
from scenarios.links import Link, read_down, read_up
from scenarios.names import Names
from scenarios.script import ScriptError
from scenarios.transcript import Transcript
from scenarios.worker_side import Worker

T = TypeVar("T")

TICK_MS = 100
_QUIET_STEPS = 3
_SETTLE_STEPS = 200


class World:
    """`cluster` is the cluster's name; time is in whole milliseconds, so that steps add up."""

    cluster = "scenario"

    def __init__(self) -> None:
        self.names = Names()
        self.transcript = Transcript()
        self.etcd = Etcd()
        self.workers: dict[str, Worker] = {}
        self.leaders: dict[str, Leader] = {}
        self.engines: dict[str, Engine] = {}
        self.links: dict[tuple[str, str], Link] = {}
        """The latest link of each pair."""
        self._ms = 100_000
        self._boots = 0
        self._link_numbers = 0

    @property
    def now(self) -> float:
        return self._ms / 1000

    def say(self, head: str, item: str) -> None:
        self.transcript.say(head, item)

    def observe(self) -> None:
        """Let everybody say what has changed with them."""
        for worker in self.workers.values():
            worker.observe()
        for leader in self.leaders.values():
            leader.observe()

    # -- who there is ------------------------------------------------------------------------------

    def boot_worker(self, name: str, settings: Callable[[bytes], CoreSettings]) -> Worker:
        """A worker's process starts, with a boot id of its own."""
        self._boots += 1
        self.workers[name] = Worker(self, name, settings(boot_id(self._boots)))
        return self.workers[name]

    def boot_leader(self, name: str, settings: LeaderSettings) -> Leader:
        self.leaders[name] = Leader(self, name, settings)
        return self.leaders[name]

    def worker(self, name: str) -> Worker:
        return _find(self.workers, name, "worker")

    def leader(self, name: str) -> Leader:
        return _find(self.leaders, name, "leader")

    def engine(self, name: str) -> Engine:
        return _find(self.engines, name, "engine")

    def process(self, name: str) -> Process:
        """`e1.r0` or `e1.scheduler`."""
        engine, _, label = name.partition(".")
        return _find(self.engine(engine).processes, label, f"process of {engine}")

    # -- links -------------------------------------------------------------------------------------

    def open_link(self, node: str, leader: str) -> Link:
        """A worker connects, after reading etcd if it can, and its hello is on its way."""
        worker = self.worker(node)
        if worker.link is not None:
            worker.lost(worker.link)
        self._link_numbers += 1
        link = self.links[node, leader] = Link(self._link_numbers, node, self.leader(leader).name)
        worker.link = link
        if not self.etcd.away:
            worker.uid, worker.history = self.etcd.uid, self.etcd.history
        link.send(True, worker.hello())
        return link

    def way(self, name: str) -> tuple[Link, bool]:
        """`n1->L1` or `L1->n1`: the link, and whether it is the way up."""
        sender, _, receiver = name.partition("->")
        for pair, upward in (((sender, receiver), True), ((receiver, sender), False)):
            if pair in self.links:
                return self.links[pair], upward
        raise ScriptError(f"{name}: there is no such link")

    def deliver(self, link: Link, upward: bool, count: int) -> int:
        """Hand on at most so many frames, then the link's end if the sender has ended it; returns how many."""
        queue = link.queue(upward)
        receiver = link.leader if upward else link.worker
        if (self.leader(receiver) if upward else self.worker(receiver)).paused:
            raise ScriptError(f"{receiver} is paused and gets nothing")
        moved = 0
        while moved < count and self._listens(link, upward) and queue:
            self._hand_on(link, upward, queue.popleft())
            moved += 1
        if moved < count:
            moved += self._end(link, upward)
        return moved

    def news(self, leader: Leader, count: int) -> int:
        """Tell a leader of registrations that have changed; returns of how many."""
        if leader.paused:
            raise ScriptError(f"{leader.name} is paused and gets nothing")
        moved = min(count, len(leader.news))
        for _ in range(moved):
            event = leader.news.popleft()
            gone = isinstance(event, leader_events.WorkerUnregistered)
            what = "gone" if gone else f"registered as {event.incarnation}"
            self.say(f"{leader.name} hears:", f"{event.node} is {what}")
            leader.feed(event)
        return moved

    def list_workers(self, leader: Leader) -> None:
        """A leader reads etcd's list of workers; what it would have heard before is in it."""
        leader.news.clear()
        leader.feed(leader_events.WorkersListed(self.etcd.listed()))

    def _listens(self, link: Link, upward: bool) -> bool:
        return link.leader_open if upward else link.worker_open

    def _hand_on(self, link: Link, upward: bool, frame: bytes) -> None:
        if upward:
            said = read_up(frame)
            self.say(f"{link.leader} gets:", words.message(said, self.names))
            self.leader(link.leader).heard(link, said)
        else:
            told = read_down(frame)
            self.say(f"{link.worker} gets:", words.message(told, self.names))
            self.worker(link.worker).heard(link, told)

    def _end(self, link: Link, upward: bool) -> int:
        """The receiver notices that the other end is closed."""
        if not self._listens(link, upward) or self._listens(link, not upward):
            return 0
        receiver = link.leader if upward else link.worker
        self.say(f"{receiver} sees", f"the link of {link.worker} end" if upward else f"its link to {link.leader} end")
        if upward:
            self.leader(link.leader).lost(link)
        else:
            self.worker(link.worker).lost(link)
        return 1

    # -- time --------------------------------------------------------------------------------------

    def tick(self, ms: int) -> None:
        """Time passes in steps as long as production's; nothing is delivered."""
        end, start = self._ms + ms, self._ms
        while self._ms < end:
            self._ms = min(end, self._ms + TICK_MS)
            self.transcript.at = f"+{(self._ms - start) / 1000:g}s " if ms > TICK_MS else ""
            self._tick_all()
            self.observe()
        self.transcript.at = ""

    def settle(self) -> None:
        """Time passes and all is delivered until nothing more is said; only what has changed in the end is told."""
        quiet = 0
        with self.transcript.muted():
            for _ in range(_SETTLE_STEPS):
                quiet = 0 if self._deliver_all() else quiet + 1
                if quiet > _QUIET_STEPS:
                    return
                self._ms += TICK_MS
                self._tick_all()
        raise ScriptError(f"settle: there is no end to it within {_SETTLE_STEPS * TICK_MS / 1000:g} s")

    @contextmanager
    def in_sum(self) -> Iterator[None]:
        """What happens in here is told by what it comes to in the slot tables."""
        before = {name: dict(worker.table) for name, worker in self.workers.items()}
        with self.transcript.muted():
            yield
        for name, worker in self.workers.items():
            for slot, record in sorted(worker.table.items()):
                if before.get(name, {}).get(slot) != record:
                    self.say(f"{name} slots:", words.record(slot, record, self.names))

    def _tick_all(self) -> None:
        for worker in self.workers.values():
            if not worker.paused:
                worker.feed(worker_events.Tick())
        for leader in self.leaders.values():
            if not leader.paused:
                if self.etcd.leader == leader.name and not self.etcd.away:
                    leader.renew()
                leader.feed(leader_events.Tick())

    def _deliver_all(self) -> int:
        moved = 0
        for leader in self.leaders.values():
            if leader.core.awaits_list and leader.core.epoch is not None and not leader.paused:
                self.list_workers(leader)
                moved += 1
            moved += 0 if leader.paused else self.news(leader, len(leader.news))
        for link in self.links.values():
            if not self.leader(link.leader).paused:
                moved += self.deliver(link, True, len(link.up) + 1)
            if not self.worker(link.worker).paused:
                moved += self.deliver(link, False, len(link.down) + 1)
        return moved


def boot_id(start: int) -> bytes:
    """Of the first worker that is started, the second, and so on."""
    return f"boot-id-{start:08}".encode()


def _find(book: dict[str, T], name: str, what: str) -> T:
    if name not in book:
        raise ScriptError(f"there is no {what} {name!r}")
    return book[name]
