"""How often etcd went back to older data: wiped, or restored from a backup. Owns the count; never talks to etcd.

Revisions only grow within one history, so what is older than what was seen before is of another one.
"""

from __future__ import annotations

from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import Resync, ResyncReason


class HistoryCounter:
    """Fed with all that the watches of one key bring, also across watches: each sees only its own past."""

    def __init__(self) -> None:
        self.history = 0
        self._revision = 0
        """Highest revision seen in this history."""
        self._created = 0
        """Create-revision of the key as last seen in this history; 0 before the first."""

    def resync(self, event: Resync) -> None:
        """A listing that is older than what was seen, by its revision or by the key in it, begins a history."""
        listing = event.listing
        older = listing.first is not None and listing.first.create_revision < self._created
        if event.reason is ResyncReason.WENT_BACK or listing.revision < self._revision or older:
            self.history += 1
            self._revision = self._created = 0
        self._revision = max(self._revision, listing.revision)
        if listing.first is not None:
            self._created = listing.first.create_revision

    def put(self, entry: KeyValue) -> None:
        """A change within this history."""
        self._revision = max(self._revision, entry.mod_revision)
        self._created = entry.create_revision
