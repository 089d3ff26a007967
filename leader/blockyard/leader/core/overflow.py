"""Registrations beyond the members that a leader takes in. Owns which of them come in when a place is free; must
never know what a member is.
"""

from blockyard.leader.core.events import WorkerRegistered


class Overflow:
    """Ignored registrations in the order they came, at most `limit` of them; of further ones only the number is
    kept, and they come in with the next reading of etcd's list.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unnamed = 0
        self.named: dict[str, WorkerRegistered] = {}
        self.since: float | None = None

    def __len__(self) -> int:
        return len(self.named) + self._unnamed

    def add(self, now: float, worker: WorkerRegistered) -> None:
        """Ignore this registration, or a newer one of the same node."""
        self.since = now if self.since is None else self.since
        if worker.node in self.named or len(self.named) < self._limit:
            self.named[worker.node] = worker
        else:
            self._unnamed += 1

    def remove(self, node: str, incarnation: int) -> None:
        """The registration of this incarnation is gone."""
        worker = self.named.get(node)
        if worker is not None and worker.incarnation <= incarnation:
            del self.named[node]
            self._settle()

    def take(self) -> WorkerRegistered | None:
        """The one that has waited longest, now that there is a place for it."""
        if not self.named:
            return None
        worker = self.named.pop(next(iter(self.named)))
        self._settle()
        return worker

    def clear(self) -> None:
        """The whole list follows anew."""
        self.named.clear()
        self._unnamed = 0
        self._settle()

    def _settle(self) -> None:
        if not len(self):
            self.since = None
