"""What etcd would say if it were asked now. Owns revisions, registrations, the election key and the cluster's uid.

No leases and no watches here: a scenario says itself what ends and who hears of it. `history` counts how often the data
went back, as the watches of production do.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockyard.common.fencing import Epoch
from blockyard.leader.core.events import WorkerRegistered
from scenarios.script import ScriptError


class Etcd:
    def __init__(self) -> None:
        self.revision = 0
        self.history = 0
        self.uid = b""
        self.registrations: dict[str, int] = {}
        self.leader: str | None = None
        self.away = False
        """Nobody reaches it: what was read last stands."""
        self._uids = 0

    def write(self, revision: int) -> int:
        """A key is created at this revision, or (0) at the next."""
        if self.away:
            raise ScriptError("etcd is away, and takes nothing")
        revision = revision or self.revision + 1
        if revision <= self.revision:
            raise ScriptError(f"revision {revision}: etcd is at {self.revision}, and only goes up")
        self.revision = revision
        return revision

    def elect(self, leader: str, revision: int) -> Epoch:
        """This leader has the election key from now on; the first one of all writes the uid."""
        if not self.uid:
            self._uids += 1
            self.uid = f"cluster-uid-{self._uids:04}".encode()
        self.leader = leader
        return Epoch(self.uid, self.write(revision))

    def wipe(self) -> None:
        """All data is gone."""
        self.uid = b""
        self.restore(0, {})

    def restore(self, revision: int, registrations: Mapping[str, int]) -> None:
        """The data is that of a backup: the uid stays, revisions start over from there."""
        self.history += 1
        self.revision = revision
        self.leader = None
        self.registrations = dict(registrations)

    def listed(self) -> tuple[WorkerRegistered, ...]:
        return tuple(WorkerRegistered(node, incarnation) for node, incarnation in self.registrations.items())
