"""One incarnation's claims as they arrive: numbered deltas, gaps, and snapshots swapped in whole.

Owns what is applied and what is owed. Must never know links or other workers.

    unbased --snapshot--> in step --gap or lost message--> behind --range--> in step
       ^                                                     |
       +------------- a range that did not come -------------+

A snapshot says what is held as of a delta. It is collected under a holder that nobody sees, so the claims
before it stand until it is whole. Deltas after it that arrive in between are not kept: what was seen and
not applied is asked for once the snapshot stands.

The worker's digests say whether what is applied is what it holds. Buckets that differ are asked for again, and
replaced as they come in the worker's numbered stream; until then the claims are not in step. Claims that are not
in step make the leader's answers `partial`.
"""

from collections.abc import Sequence

from blockyard.common.messages.cluster import (
    MAX_REPAIRED,
    Change,
    Delta,
    Digests,
    Repair,
    Replacement,
    Resync,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotOffer,
    SnapshotPart,
    World,
)
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core.drift import Drift
from blockyard.leader.core.journal import Journal
from blockyard.leader.core.ownership import Holder, Ownership
from blockyard.leader.core.settings import LeaderSettings


class TooManyKeys(Exception):
    """The worker claims more than a worker may; the message is one line for people."""


class Unexpected(Exception):
    """A message that cannot come at this point; the message is one line for people."""


class Collection:
    """A snapshot that is not yet whole."""

    def __init__(self, begin: SnapshotBegin, holder: Holder) -> None:
        self.seq = begin.seq
        self.parts = 0
        self.received = 0
        self.holder = holder
        self.worlds = {world.index: world for world in begin.worlds}
        _announce(holder, begin.worlds)


class Claims:
    """What one incarnation of a worker claims to hold, and how far that is known.

    `applied` is the last delta that counts, `seen` the last one known to exist. Methods return the Resync
    to send, if one is needed.
    """

    def __init__(
        self, node: str, index: Ownership, journal: Journal, counters: Counters, settings: LeaderSettings
    ) -> None:
        self.node = node
        self.based = False
        self.applied = 0
        self.seen = 0
        self.acked = 0
        self.holder = index.open(node)
        self.collecting: Collection | None = None
        self.worlds: dict[int, World] = {}
        self._index = index
        self._journal = journal
        self._counters = counters
        self._settings = settings
        self._asked_at: float | None = None
        self._asked_range = False
        self._discarded_at: float | None = None
        self._drift = Drift(settings.digest_interval)
        index.show(self.holder)

    @property
    def in_step(self) -> bool:
        """True while all that is known to exist is applied, and nothing of it is known to be wrong."""
        return self.based and self.applied >= self.seen and not self._drift.repairing

    def resume(self, now: float, next_seq: int) -> int:
        """A link begins whose next new delta is `next_seq`; returns what to expect (0: a snapshot)."""
        self._drop_collection()
        self._drift.forget()
        self.acked = self.applied
        self.based = self.based and next_seq > self.applied
        self.seen = max(0, next_seq - 1)
        self._asked_at, self._asked_range = None if self.in_step else now, self.based
        return self.applied + 1 if self.based else 0

    def suspend(self) -> None:
        """The link is gone; half a snapshot is of no use on the next one."""
        self._drop_collection()
        self._drift.forget()

    def drop(self) -> None:
        """Nothing is claimed any more."""
        self._drop_collection()
        self._index.retire(self.holder)

    def forget(self) -> None:
        """Start over without claims, as if nothing had ever come."""
        self.drop()
        self._drift.forget()
        self.holder = self._index.open(self.node)
        self._index.show(self.holder)
        self.based, self.applied, self.seen, self.acked, self.worlds = False, 0, 0, 0, {}

    def delta(self, now: float, delta: Delta | Replacement) -> Resync | None:
        """Apply the next in the stream; a duplicate changes nothing, a jump asks for what lies between."""
        self.seen = max(self.seen, delta.seq)
        if not self.based or self.collecting is not None:
            return None
        if delta.seq <= self.applied:
            self.acked = min(self.acked, self.applied - 1)
            return None
        if delta.seq > self.applied + 1:
            if self._asked_at is not None:
                return None
            self._counters.add("blockyard_leader_delta_gaps_total")
            return self._ask(now, self.applied + 1, f"delta {delta.seq} came after {self.applied}")
        worlds = self.worlds | {world.index: world for world in delta.worlds} if delta.worlds else self.worlds
        if (stranger := _unknown_world(delta.changes, worlds)) is not None:
            self.based = False
            return self._ask(now, 0, f"delta {delta.seq} names world {stranger}, which was not announced")
        self.worlds = worlds
        _announce(self.holder, delta.worlds)
        self._apply(delta)
        self._journal.note(now, self.node, f"delta {delta.seq}", delta.changes)
        self._counters.add("blockyard_leader_deltas_applied_total", len(delta.changes))
        self.applied = delta.seq
        if self.applied >= self.seen:
            self._asked_at = None
        self._check_size(self.holder)
        return None

    def offered(self, now: float, offer: SnapshotOffer) -> None:
        """A snapshot waits to be let in; what it is to replace will not come."""
        self.seen = max(self.seen, offer.seq)
        self.wait(now)

    def wait(self, now: float) -> None:
        """What is owed is late by no fault of the worker's."""
        self._asked_at = now

    def begin(self, now: float, begin: SnapshotBegin) -> None:
        """Start collecting; a second begin replaces the first. One older than what stands is passed over."""
        if self.in_step and begin.seq < self.applied:
            raise Unexpected(f"snapshot as of delta {begin.seq}, but {self.applied} is applied")
        self._drop_collection()
        self.collecting = Collection(begin, self._index.open(self.node))
        self.seen = max(self.seen, begin.seq)
        self._asked_at = now

    def part(self, now: float, part: SnapshotPart) -> Resync | None:
        """Collect some keys."""
        collection = self.collecting
        if collection is None:
            raise Unexpected("snapshot part without a begin")
        self._asked_at = now
        if (stranger := _unknown_world(part.changes, collection.worlds)) is not None:
            return self._discard(now, f"snapshot names world {stranger}, which was not announced")
        self._index.apply(collection.holder, part.changes)
        self._journal.note(now, self.node, f"snapshot {collection.seq}", part.changes)
        collection.parts += 1
        collection.received += len(part.changes)
        self._check_size(collection.holder)
        return None

    def end(self, now: float, end: SnapshotEnd) -> Resync | None:
        """Swap the snapshot in if it is whole, and ask for the deltas that passed meanwhile."""
        collection = self.collecting
        if collection is None:
            raise Unexpected("snapshot end without a begin")
        if (end.seq, end.keys) != (collection.seq, collection.received):
            return self._discard(
                now,
                f"snapshot of delta {end.seq} ended at {end.keys} keys, "
                f"but that of delta {collection.seq} brought {collection.received}",
            )
        self._index.retire(self.holder)
        self._index.show(collection.holder)
        self.holder, self.worlds, self.collecting = collection.holder, collection.worlds, None
        self.based, self.applied = True, collection.seq
        self.acked = max(0, min(self.acked, self.applied - 1))
        self._drift.repairing.clear()
        self._counters.add("blockyard_leader_snapshots_total")
        self._asked_at = None
        if self.in_step:
            return None
        return self._ask(now, self.applied + 1, f"deltas up to {self.seen} passed during the snapshot")

    def digests(self, digests: Digests) -> None:
        """What the worker holds, in short."""
        self._drift.told(digests)

    def drifted(self, now: float) -> list[int]:
        """The buckets in which what is applied is not what the worker holds, if that can be told now."""
        if not self.in_step or self.collecting is not None or not self._drift.due(now, self.applied):
            return []
        buckets = self._drift.found(now, self.holder.digests.packed())
        self._counters.add("blockyard_leader_drifted_buckets_total", len(buckets))
        return buckets

    def repair(self, now: float, buckets: list[int]) -> Repair | Resync:
        """Ask for what has drifted: these buckets, or all if they are many."""
        if len(buckets) > MAX_REPAIRED:
            self.based = False
            return self._ask(now, 0, f"the digests of {len(buckets)} buckets differ")
        self._drift.repairing.update(buckets)
        # What does not come is asked for as a snapshot: there is no range to wait for.
        self._asked_at, self._asked_range = now, True
        return Repair(bytes(buckets))

    def overdue(self, now: float) -> Resync | None:
        """On a live link: ask again when what was asked for did not come; a range is then given up."""
        if self.in_step or (self._asked_at is not None and now - self._asked_at < self._settings.resync_patience):
            return None
        if self.collecting is not None:
            return self._discard(now, "snapshot stopped half-way")
        if self.based and not self._asked_range:
            return self._ask(now, self.applied + 1, f"deltas up to {self.seen} are missing")
        return self._ask(now, 0, "what was asked for did not come")

    def _apply(self, delta: Delta | Replacement) -> None:
        if isinstance(delta, Delta):
            self._index.apply(self.holder, delta.changes)
            return
        self._index.replace(self.holder, delta)
        if self._drift.repaired(delta.bucket, delta.last):
            self._counters.add("blockyard_leader_repaired_buckets_total")

    def _ask(self, now: float, from_seq: int, reason: str) -> Resync:
        self._asked_at, self._asked_range = now, from_seq > 0
        self._counters.add("blockyard_leader_resyncs_total")
        return Resync(from_seq, reason)

    def _discard(self, now: float, reason: str) -> Resync | None:
        """Let half a snapshot go and ask anew: at once the first time, later a worker that keeps failing."""
        self._drop_collection()
        before, self._discarded_at = self._discarded_at, now
        if before is not None and now - before < self._settings.resync_patience:
            self._asked_at, self._asked_range = now, False
            return None
        return self._ask(now, 0, reason)

    def _check_size(self, holder: Holder) -> None:
        if holder.copies > self._settings.max_keys_per_worker:
            raise TooManyKeys(f"claims more than {self._settings.max_keys_per_worker} keys")

    def _drop_collection(self) -> None:
        if self.collecting is not None:
            self._index.retire(self.collecting.holder)
            self.collecting = None


def _announce(holder: Holder, worlds: Sequence[World]) -> None:
    for world in worlds:
        holder.announce(world.index, world.fingerprint)


def _unknown_world(changes: Sequence[Change], worlds: dict[int, World]) -> int | None:
    """The first world a held key names that was not announced; a removal needs none."""
    for change in changes:
        if change.world not in worlds and change.tiers:
            return change.world
    return None
