"""What the leader should know of this worker: each key that may be given away, by its first byte, with rolling
digests.

Owns the worker's side of both. Must never know what has been told, or whether there is a leader. Buckets make
snapshots and repairs a matter of steps: no reading goes over all keys at once.
"""

from collections.abc import Iterator

from blockyard.common.digests import RollingDigests
from blockyard.common.identity import Key
from blockyard.common.messages.cluster import BUCKETS, MAX_CHANGES, Change

LAST_BYTE = 255


class Ledger:
    """The last change of each key that is held. `digests` follow every change."""

    def __init__(self) -> None:
        self._buckets: list[dict[Key, Change]] = [{} for _ in range(BUCKETS)]
        self.digests = RollingDigests()
        self.keys = 0

    def enter(self, change: Change) -> None:
        """From now on the key is held as the change says; tiers 0: not at all."""
        key = change.key
        bucket = self._buckets[key[0]]
        before = bucket.pop(key, None)
        tiers = 0 if before is None else before.tiers
        if change.tiers:
            bucket[key] = change
        self.keys += bool(change.tiers) - bool(tiers)
        if tiers != change.tiers:
            self.digests.flip(key, tiers ^ change.tiers)

    def bucket(self, number: int) -> list[Change]:
        """All that is held of one bucket."""
        return list(self._buckets[number].values())

    def entries(self) -> Iterator[Change]:
        """Everything, for checks."""
        for bucket in self._buckets:
            yield from bucket.values()

    def slice(self, number: int, first: int) -> tuple[int, list[Change]] | None:
        """What is held of one bucket from the second byte `first` on, as much as one message takes, and the last
        second byte that is in it; None if those of one second byte are too many.
        """
        rest = [change for change in self._buckets[number].values() if change.key[1] >= first]
        if len(rest) <= MAX_CHANGES:
            return LAST_BYTE, rest
        rest.sort(key=_second_byte)
        last = _second_byte(rest[MAX_CHANGES]) - 1
        if last < first:
            return None
        return last, [change for change in rest if _second_byte(change) <= last]


def _second_byte(change: Change) -> int:
    return change.key[1]
