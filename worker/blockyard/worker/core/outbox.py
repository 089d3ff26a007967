"""What the leader is told. Owns numbering, coalescing and bounds of ownership changes; knows no link.

A change waits in `pending` (the last one per key wins), goes out in a numbered Delta, and is kept until the
leader has acknowledged it. Whatever cannot be kept within the bounds is dropped whole, and a snapshot takes
its place.

A snapshot is offered first, and sent in parts as the leader gives credit for them. Changes since its begin wait in
`pending` and follow as Deltas. While it is only offered nothing waits: it will say all.

Where the leader's digests differ from the ledger's, what it asks for is said again by Replacements, numbered as Deltas
are.
"""

from collections import deque
from itertools import islice

from blockyard.common.identity import Fingerprint, Key
from blockyard.common.messages import cluster
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.instructions import ToLeader
from blockyard.worker.core.ledger import LAST_BYTE, Ledger
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.snapshot import Snapshot
from blockyard.worker.core.worlds import Shapes, World

Numbered = cluster.Delta | cluster.Replacement


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
        self._announced: dict[int, tuple[Fingerprint, Shapes]] = {}
        self._pending: dict[Key, cluster.Change] = {}
        self._unacked: deque[Numbered] = deque()
        self._unacked_changes = 0
        self._snapshot: Snapshot | None = None
        self._snapshot_needed = True
        self._offered = False
        self._credit = 0
        self._repairs: dict[int, int] = {}
        """Buckets to be said again, and the second byte from which on that is still to be done."""
        self._digested = -1
        """The Delta as of which the leader has the digests."""
        self._linked = False
        self.ledger = Ledger()
        self.next_seq = 1

    @property
    def depth(self) -> int:
        """Changes that the leader has not acknowledged."""
        return len(self._pending) + self._unacked_changes

    @property
    def linked(self) -> bool:
        """The leader can be spoken to."""
        return self._linked

    @property
    def bounded(self) -> bool:
        """Whether every queue is within its bound."""
        settings = self._settings
        return (
            len(self._pending) <= settings.outbox_changes
            and len(self._unacked) <= settings.outbox_deltas
            and len(self._repairs) <= cluster.BUCKETS
            and self._unacked_changes == sum(len(one.changes) for one in self._unacked)
        )

    @property
    def can_send(self) -> bool:
        """Whether a Delta or Replacement can go out now."""
        return self._in_turn and bool(self._pending or self._repairs) and self._room

    @property
    def settled(self) -> bool:
        """Whether the leader has been told all, and has acknowledged every Delta."""
        return self._all_told and not self._unacked

    def note(self, key: Key, size_class: SizeClass, tiers: int) -> None:
        """The key can be had from these tiers from now on; 0: not any more."""
        change = _change(key, size_class, tiers)
        self.ledger.enter(change)
        if self._snapshot_needed:
            return  # the snapshot will say it
        self._pending[change.key] = change
        if len(self._pending) > self._settings.outbox_changes:
            self._counters.add("blockyard_worker_outbox_dropped_total", self.depth)
            self._start_over()

    def restart(self) -> None:
        """A new incarnation: nothing was ever said."""
        self.link_down()
        self._start_over()
        self.next_seq = 1

    def link_down(self) -> None:
        """What was under way is lost, and so is the leader's consent to it."""
        self._linked = False
        self._offered, self._credit, self._digested = False, 0, -1
        self._repairs.clear()
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
            self._unacked_changes -= len(self._unacked.popleft().changes)

    def credited(self, seq: int, parts: int) -> None:
        """The leader takes so many parts of the snapshot that was offered; credit of an earlier one is void."""
        if self._offered and seq == self.next_seq - 1:
            self._credit = max(self._credit, parts)

    def repair(self, buckets: bytes) -> None:
        """The leader's digests of these buckets differ from ours."""
        if self._in_turn:
            self._counters.add("blockyard_worker_outbox_repairs_total", len(buckets))
            self._repairs |= dict.fromkeys(buckets, 0)

    def digests(self) -> cluster.Digests | None:
        """The digests, if the leader has been told all that they are of, and has not had these."""
        seq = self.next_seq - 1
        if not self._all_told or self._digested == seq:
            return None
        self._digested = seq
        return cluster.Digests(seq, self.ledger.digests.packed())

    def pump(self) -> list[ToLeader]:
        """What may be sent in this step."""
        messages = self.pump_snapshot()
        while self.can_send:
            message = self._next_replacement() if self._repairs else self._next_delta()
            if message is not None:
                messages.append(message)
        return messages

    def pump_snapshot(self) -> list[ToLeader]:
        """The same without Deltas: what may be sent now of a snapshot that is under way, or has to begin."""
        if not self._linked:
            return []
        if self._snapshot_needed:
            if self.ledger.keys and not self._credit:
                return self._offer()
            self._begin_snapshot()
        if self._snapshot is None:
            return []
        messages: list[ToLeader] = [*self._snapshot.take(self._credit, self._settings.snapshot_parts_per_tick)]
        if self._snapshot.over:
            self._snapshot, self._offered, self._credit = None, False, 0
        return messages

    @property
    def _in_turn(self) -> bool:
        """Whether Deltas may be sent, as far as snapshots go."""
        return self._linked and self._snapshot is None and not self._snapshot_needed

    @property
    def _all_told(self) -> bool:
        return self._in_turn and not self._pending and not self._repairs

    @property
    def _room(self) -> bool:
        """Whether one more Delta may wait for its acknowledgement; what a link has to buffer is bounded by it."""
        settings = self._settings
        return len(self._unacked) < settings.outbox_deltas and self._unacked_changes < settings.outbox_changes

    def _start_over(self) -> None:
        if not self._snapshot_needed:
            # A number is spent on what is dropped: a leader whom the snapshot never reaches then sees a gap.
            self.next_seq += 1
        self._pending.clear()
        self._unacked.clear()
        self._unacked_changes = 0
        self._repairs.clear()
        self._snapshot = None
        self._snapshot_needed = True
        self._offered, self._credit = False, 0

    def _offer(self) -> list[ToLeader]:
        """Once for each time that a snapshot is needed."""
        if self._offered:
            return []
        self._offered = True
        return [cluster.SnapshotOffer(self.next_seq - 1, self.ledger.keys)]

    def _begin_snapshot(self) -> None:
        self._snapshot_needed = False
        self._counters.add("blockyard_worker_outbox_resyncs_total")
        self._announced = {world.index: (world.fingerprint, world.shapes) for world in self._worlds.values()}
        worlds = [_announcement(world) for world in self._worlds.values()]
        self._snapshot = Snapshot(self.next_seq - 1, worlds, self.ledger, self._settings.snapshot_part_keys)

    def _next_delta(self) -> cluster.Delta:
        keys = list(islice(self._pending, cluster.MAX_CHANGES))
        changes = [self._pending.pop(key) for key in keys]
        delta = cluster.Delta(self.next_seq, self._announce(changes), changes)
        self._sent(delta)
        return delta

    def _next_replacement(self) -> cluster.Replacement | None:
        """What is held now, though Deltas that say some of it may follow: the last word on each key is the same."""
        bucket, first = next(iter(self._repairs.items()))
        piece = self.ledger.slice(bucket, first)
        if piece is None:
            self._start_over()
            return None
        last, changes = piece
        if last == LAST_BYTE:
            del self._repairs[bucket]
        else:
            self._repairs[bucket] = last + 1
        message = cluster.Replacement(self.next_seq, self._announce(changes), changes, bucket, first, last)
        self._sent(message)
        return message

    def _sent(self, message: Numbered) -> None:
        self.next_seq += 1
        self._unacked.append(message)
        self._unacked_changes += len(message.changes)

    def _announce(self, changes: list[cluster.Change]) -> list[cluster.World]:
        """Worlds that these changes use and that the leader has not heard of."""
        by_index = {world.index: world for world in self._worlds.values()}
        fresh = []
        for index in sorted({change.world for change in changes}):
            world = by_index.get(index)
            if world is not None and self._announced.get(index) != (world.fingerprint, world.shapes):
                self._announced[index] = (world.fingerprint, world.shapes)
                fresh.append(_announcement(world))
        return fresh
