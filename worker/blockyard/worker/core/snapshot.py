"""A snapshot on its way to the leader. Owns how far it is; must never know what else the leader is told.

It says what is held as of a Delta, though each key is read only when its part is made: what has changed since then
follows in Deltas, and whoever applies these last is right.
"""

from blockyard.common.messages.cluster import BUCKETS, Change, SnapshotBegin, SnapshotEnd, SnapshotPart, World
from blockyard.worker.core.ledger import Ledger

SnapshotMessage = SnapshotBegin | SnapshotPart | SnapshotEnd


class Snapshot:
    """`take` gives the next messages, until it is `over`."""

    def __init__(self, seq: int, worlds: list[World], ledger: Ledger, part_keys: int) -> None:
        self._ledger = ledger
        self._part_keys = part_keys
        self._worlds = {world.index for world in worlds}
        self._begin: SnapshotBegin | None = SnapshotBegin(seq, ledger.keys, worlds)
        self._seq = seq
        self._next_bucket = 0
        self._read: list[Change] = []
        self._parts = 0
        self._keys = 0
        self.over = False

    def take(self, credit: int, most: int) -> list[SnapshotMessage]:
        """What may be sent now: no part beyond the `credit`th of all, and at most so many at once."""
        messages: list[SnapshotMessage] = []
        if self._begin is not None:
            messages.append(self._begin)
            self._begin = None
        for _ in range(min(most, credit - self._parts)):
            if not self._more():
                break
            messages.append(self._next_part())
        if not self._more():
            messages.append(SnapshotEnd(self._seq, self._keys))
            self.over = True
        return messages

    def _more(self) -> bool:
        """Read on until there is enough for a part; False if nothing is left."""
        while len(self._read) < self._part_keys and self._next_bucket < BUCKETS:
            # A world that came up since the begin was not announced with it; its keys are in the Deltas to follow.
            self._read += [one for one in self._ledger.bucket(self._next_bucket) if one.world in self._worlds]
            self._next_bucket += 1
        return bool(self._read)

    def _next_part(self) -> SnapshotPart:
        changes = self._read[: self._part_keys]
        del self._read[: self._part_keys]
        self._parts += 1
        self._keys += len(changes)
        return SnapshotPart(changes)
