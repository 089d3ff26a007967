"""etcd as far as Blockyard uses it: revisions, leases, transactions, history for watches. Owns the store.

It can be down, paused, compacted, wiped, and restored from a backup. Like the real one it grants running leases
their full time again after a restart, and gives up none while it is stopped.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from blockyard.common.etcd.values import KeyValue, Listing
from sim.clock import Clock
from sim.tasks import Future

Change = KeyValue | tuple[str, int]
"""A put, or (key, revision) of a deletion."""


class Down(Exception):
    """Nobody answers."""


class Gone(Exception):
    """The lease is not there any more."""


class Compacted(Exception):
    """What lies between is not kept any more."""


@dataclass(slots=True)
class Lease:
    ttl: int
    ends: float
    keys: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Store:
    """What a backup holds."""

    revision: int = 1
    compacted: int = 0
    keys: dict[str, KeyValue] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    last_lease: int = 0


class EtcdServer:
    """All methods act at once; time on the way is the client's."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.store = Store()
        self.down = False
        self.life = 1
        """Counts restarts: an answer of an earlier life never arrives."""
        self.timeline = 1
        """Counts wipes and restores."""
        self.frozen_until = 0.0
        self._backup: Store | None = None
        self._next_change: Future[None] = Future()

    # Faults.

    def stop(self) -> None:
        self.down = True
        self.life += 1
        self._next_change.resolve(None)

    def start(self) -> None:
        if not self.down:
            return
        self.down = False
        for number, lease in self.store.leases.items():
            lease.ends = self.clock.now + lease.ttl
            self._expire_at(number, lease.ends)

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self.clock.now + seconds)

    def back_up(self) -> None:
        self._backup = copy.deepcopy(self.store)

    def wipe(self) -> None:
        """Data lost: only while stopped."""
        self.store, self._backup = Store(), None
        self._begin_timeline()

    def restore(self) -> None:
        """The data is that of the backup again: only while stopped."""
        if self._backup is not None:
            self.store = copy.deepcopy(self._backup)
            self._begin_timeline()

    def compact(self) -> None:
        self.store.compacted = self.store.revision
        self.store.history.clear()

    def _begin_timeline(self) -> None:
        self.timeline += 1
        self.store.last_lease = self.timeline * 10_000  # etcd's lease numbers are random: none comes twice

    # Requests.

    def get(self, key: str) -> KeyValue | None:
        return self.store.keys.get(key)

    def listing(self, prefix: str) -> Listing:
        found = tuple(kv for key, kv in sorted(self.store.keys.items()) if key.startswith(prefix))
        return Listing(self.store.revision, found)

    def create_if_absent(self, key: str, value: bytes, lease: int = 0) -> tuple[bool, KeyValue]:
        current = self.store.keys.get(key)
        if current is not None:
            return False, current
        return True, self._put(key, value, lease)

    def delete_if(self, key: str, mod_revision: int) -> None:
        current = self.store.keys.get(key)
        if current is not None and current.mod_revision == mod_revision:
            self.delete(key)

    def put_if(self, key: str, create_revision: int, value: bytes, lease: int) -> bool:
        current = self.store.keys.get(key)
        if current is None or current.create_revision != create_revision:
            return False
        self._put(key, value, lease)
        return True

    def delete(self, key: str) -> None:
        current = self.store.keys.pop(key, None)
        if current is None:
            return
        if current.lease in self.store.leases:
            self.store.leases[current.lease].keys.pop(key, None)
        self.store.revision += 1
        self._record((key, self.store.revision))

    def grant(self, ttl: int) -> int:
        self.store.last_lease += 1
        number = self.store.last_lease
        self.store.leases[number] = Lease(ttl, self.clock.now + ttl)
        self._expire_at(number, self.clock.now + ttl)
        return number

    def keep_alive(self, number: int) -> int:
        lease = self.store.leases.get(number)
        if lease is None:
            raise Gone
        lease.ends = self.clock.now + lease.ttl
        self._expire_at(number, lease.ends)
        return lease.ttl

    def revoke(self, number: int) -> None:
        lease = self.store.leases.pop(number, None)
        for key in [] if lease is None else list(lease.keys):
            self.delete(key)

    def since(self, prefix: str, revision: int) -> list[Change]:
        """Changes from `revision` on."""
        if revision <= self.store.compacted:
            raise Compacted
        return [
            change for change in self.store.history if _key(change).startswith(prefix) and _revision(change) >= revision
        ]

    def next_change(self) -> Future[None]:
        """Resolved at the next change, or when this server stops."""
        if self._next_change.done:
            self._next_change = Future()
        return self._next_change

    def _put(self, key: str, value: bytes, lease: int) -> KeyValue:
        if lease and lease not in self.store.leases:
            raise Gone
        self.store.revision += 1
        now = self.store.revision
        old = self.store.keys.get(key)
        kv = KeyValue(key, value, now, now, 1, lease)
        if old is not None:
            kv = replace(kv, create_revision=old.create_revision, version=old.version + 1)
        self.store.keys[key] = kv
        if lease:
            self.store.leases[lease].keys[key] = None
        self._record(kv)
        return kv

    def _record(self, change: Change) -> None:
        self.store.history.append(change)
        self._next_change.resolve(None)

    def _expire_at(self, number: int, at: float) -> None:
        self.clock.after(at - self.clock.now, lambda: self._expire(number))

    def _expire(self, number: int) -> None:
        lease = self.store.leases.get(number)
        if lease is None or self.down:
            return
        if self.clock.now < self.frozen_until:
            self._expire_at(number, self.frozen_until)
        elif lease.ends <= self.clock.now:
            self.revoke(number)


def _key(change: Change) -> str:
    return change.key if isinstance(change, KeyValue) else change[0]


def _revision(change: Change) -> int:
    return change.mod_revision if isinstance(change, KeyValue) else change[1]


Request = Callable[[], Any]
