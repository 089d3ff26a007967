"""What a worker's rolling digests say against the index. Owns when they are compared, and which buckets are being
repaired; must never know what is in a bucket.

The latest digests are kept, and compared for as long as they describe what is applied: a worker without changes
does not send them again, though the index could drift meanwhile.
"""

from blockyard.common.digests import differing
from blockyard.common.messages.cluster import Digests

MAX_PATIENCE = 64
"""Intervals between two comparisons at most, when repairing again and again does not help."""

LAST_BYTE = 255


class Drift:
    """`repairing` are the buckets that were asked for and have not come whole."""

    def __init__(self, interval: float) -> None:
        self.repairing: set[int] = set()
        self._interval = interval
        self._told: Digests | None = None
        self._due = 0.0
        self._in_vain = 0

    def told(self, digests: Digests) -> None:
        """The worker's digests as of a delta. They replace earlier ones, and are compared at once unless repairs
        do not help.
        """
        self._told = digests
        if not self._in_vain:
            self._due = 0.0

    def forget(self) -> None:
        """What was told and asked for on a link is void with it."""
        self._told = None
        self.repairing.clear()

    def due(self, now: float, applied: int) -> bool:
        """Whether there is something to compare now."""
        return self._told is not None and self._told.seq == applied and now >= self._due

    def found(self, now: float, ours: bytes) -> list[int]:
        """The buckets that differ. The more often some do in a row, the later they are looked at again."""
        assert self._told is not None
        buckets = differing(ours, self._told.words)
        self._in_vain = min(2 * self._in_vain or 1, MAX_PATIENCE) if buckets else 0
        self._due = now + self._interval * max(1, self._in_vain)
        return buckets

    def repaired(self, bucket: int, last: int) -> bool:
        """A piece of this bucket came, up to the second byte `last`; True if a repair of it is done with that."""
        if bucket not in self.repairing or last != LAST_BYTE:
            return False
        self.repairing.remove(bucket)
        return True
