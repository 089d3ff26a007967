"""What the leader is told. Owns numbering, coalescing and bounds of ownership changes; knows no link.

A change waits in `pending` (the last one per key wins), goes out in a numbered Delta, and is kept until the
leader has acknowledged it. Whatever cannot be kept within the bounds is dropped whole, and a snapshot takes
its place.

A snapshot is sent in parts over several steps. It says what was held when it began; changes since then wait
in `pending` and follow as Deltas.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from blockyard.common.identity import Fingerprint, Key
from blockyard.common.messages import cluster
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.instructions import ToLeader
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.worlds import World

Held = tuple[Key, SizeClass, int]
"""A key that is held, its class, and the tiers that hold it."""


def _change(key: Key, size_class: SizeClass, tiers: int) -> cluster.Change:
    size = size_class.area_bytes * size_class.areas if tiers else 0
    return cluster.Change(key, tiers, size, size_class.group, size_class.world)


def _announcement(world: World) -> cluster.World:
    tokens = [(group, tokens) for group, tokens, _ in world.shapes]
    return cluster.World(world.index, world.fingerprint, world.model[: cluster.MAX_SHORT], tokens)


class Outbox:
    """Changes on their way to the leader. `worlds` is shared with the world book and only read."""

    def __init__(self, settings: CoreSettings, counters: Counters, worlds: dict[Fingerprint, World]) -> None:
        self._settings = settings
        self._counters = counters
        self._worlds = worlds
        self._announced: dict[int, Fingerprint] = {}
        self._pending: dict[Key, cluster.Change] = {}
        self._unacked: deque[cluster.Delta] = deque()
        self._snapshot: Iterator[ToLeader] | None = None
        self._snapshot_needed = True
        self._linked = False
        self.next_seq = 1

    @property
    def depth(self) -> int:
        """Changes that the leader has not acknowledged."""
        return len(self._pending) + sum(len(delta.changes) for delta in self._unacked)

    @property
    def linked(self) -> bool:
        """The leader can be spoken to."""
        return self._linked

    @property
    def bounded(self) -> bool:
        """Whether every queue is within its bound."""
        settings = self._settings
        return len(self._pending) <= settings.outbox_changes and len(self._unacked) <= settings.outbox_deltas

    @property
    def can_send(self) -> bool:
        """Whether a Delta can go out now."""
        free = self._linked and self._snapshot is None and not self._snapshot_needed
        return free and bool(self._pending) and len(self._unacked) < self._settings.outbox_deltas

    @property
    def settled(self) -> bool:
        """Whether the leader has been told all, and has acknowledged every Delta."""
        waiting = self._snapshot_needed or self._snapshot is not None
        return self._linked and not waiting and not self._pending and not self._unacked

    def note(self, key: Key, size_class: SizeClass, tiers: int) -> None:
        """The key is held in these tiers from now on; 0: not any more."""
        if self._snapshot_needed:
            return  # the snapshot will say it
        self._pending[key] = _change(key, size_class, tiers)
        if len(self._pending) > self._settings.outbox_changes:
            self._counters.add("blockyard_worker_outbox_dropped_total", self.depth)
            self._start_over()

    def restart(self) -> None:
        """A new incarnation: nothing was ever said."""
        self._linked = False
        self._start_over()
        self.next_seq = 1

    def link_down(self) -> None:
        self._linked = False
        if self._snapshot is not None:
            self._start_over()

    def link_up(self, expect_seq: int) -> list[ToLeader]:
        """What has to be sent again at once; the rest follows with `pump`."""
        self._linked = True
        return self.resend(expect_seq)

    def resend(self, from_seq: int) -> list[ToLeader]:
        """Deltas from `from_seq` on; if they are no longer kept (or it is 0) a snapshot will follow
        instead.
        """
        if not self._linked:
            return []
        if self._snapshot is not None or self._snapshot_needed:
            self._start_over()
            return []
        self.acked(from_seq - 1)
        kept_from = self._unacked[0].seq if self._unacked else self.next_seq
        if from_seq != kept_from:
            self._start_over()
            return []
        return list(self._unacked)

    def acked(self, seq: int) -> None:
        """Every Delta up to `seq` is applied. Late and repeated acknowledgements change nothing."""
        while self._unacked and self._unacked[0].seq <= seq:
            self._unacked.popleft()

    def pump(self, holding: Iterator[Held]) -> list[ToLeader]:
        """What may be sent in this step. `holding` gives every chunk that is held, if a snapshot has to
        begin.
        """
        messages = self.pump_snapshot(holding)
        while self.can_send:
            messages.append(self._next_delta())
        return messages

    def pump_snapshot(self, holding: Iterator[Held]) -> list[ToLeader]:
        """The same without Deltas: the next parts of a snapshot that is under way, or has to begin."""
        if not self._linked:
            return []
        if self._snapshot_needed:
            self._begin_snapshot(list(holding))
        if self._snapshot is None:
            return []
        messages = list(islice(self._snapshot, self._settings.snapshot_parts_per_tick))
        if isinstance(messages[-1], cluster.SnapshotEnd):
            self._snapshot = None
        return messages

    def _start_over(self) -> None:
        if not self._snapshot_needed:
            # A number is spent on what is dropped: a leader whom the snapshot never reaches then sees a gap.
            self.next_seq += 1
        self._pending.clear()
        self._unacked.clear()
        self._snapshot = None
        self._snapshot_needed = True

    def _begin_snapshot(self, chunks: list[Held]) -> None:
        self._snapshot_needed = False
        self._counters.add("blockyard_worker_outbox_resyncs_total")
        self._announced = {world.index: world.fingerprint for world in self._worlds.values()}
        worlds = [_announcement(world) for world in self._worlds.values()]
        self._snapshot = self._snapshot_messages(self.next_seq - 1, worlds, chunks)

    def _snapshot_messages(self, seq: int, worlds: list[cluster.World], chunks: list[Held]) -> Iterator[ToLeader]:
        yield cluster.SnapshotBegin(seq, len(chunks), worlds)
        for start in range(0, len(chunks), cluster.MAX_CHANGES):
            part = chunks[start : start + cluster.MAX_CHANGES]
            yield cluster.SnapshotPart([_change(*held) for held in part])
        yield cluster.SnapshotEnd(seq, len(chunks))

    def _next_delta(self) -> cluster.Delta:
        keys = list(islice(self._pending, cluster.MAX_CHANGES))
        changes = [self._pending.pop(key) for key in keys]
        delta = cluster.Delta(self.next_seq, self._announce(changes), changes)
        self.next_seq += 1
        self._unacked.append(delta)
        return delta

    def _announce(self, changes: list[cluster.Change]) -> list[cluster.World]:
        """Worlds that these changes use and that the leader has not heard of."""
        by_index = {world.index: world for world in self._worlds.values()}
        fresh = []
        for index in sorted({change.world for change in changes}):
            world = by_index.get(index)
            if world is not None and self._announced.get(index) != world.fingerprint:
                self._announced[index] = world.fingerprint
                fresh.append(_announcement(world))
        return fresh
