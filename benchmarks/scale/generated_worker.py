"""One generated worker: a worker's machine, registration and link over made-up chunks instead of a pool.

Owns which of a process's chunks the machine's outbox is told of, and when. Machine, registration and link are the
worker's own code, so what is said on the wire is what workers say, and when.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from blockyard.common.identity import fingerprint
from blockyard.common.messages import cluster
from blockyard.worker.core import events
from blockyard.worker.core.instructions import Publish
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.worker import WorkerCore
from blockyard.worker.core.worlds import World
from blockyard.worker.health import Health
from blockyard.worker.leader_link import Identity, LeaderLink
from scale.churn import Churn

CHUNK_BYTES = 32 << 20
_WITHHELD_SECONDS = 2.0
"""Changes that the leader has not acknowledged, as seconds of the rate, beyond which no more are made."""
_LEAST_WITHHELD = 200
_LONGEST_GAP = 1.0
"""A tick that comes later makes no more changes than one that comes so late."""

_FINGERPRINT = fingerprint({"engine": "generated"})
_WORLD = World(index=0, fingerprint=_FINGERPRINT, model="generated", areas=1, shapes=((0, 256, CHUNK_BYTES),))


@dataclass(frozen=True, slots=True)
class _Class:
    """As much of a size class as an outbox looks at."""

    world: int = 0
    group: int = 0
    areas: int = 1
    area_bytes: int = CHUNK_BYTES


_CLASS = cast(SizeClass, _Class())


@dataclass(slots=True)
class Sent:
    """What a process's workers have put on their links so far."""

    changes: int = 0
    deltas: int = 0
    snapshots: int = 0
    others: int = 0
    links: int = 0
    """Links that a leader has welcomed."""
    withheld: int = 0
    """Changes not made, for the leader was too far behind."""


class GeneratedWorker:
    """Feed it its link's events, and `tick` it every `interval` seconds."""

    def __init__(self, identity: Identity, churn: Churn, sent: Sent, interval: float) -> None:
        self.identity = identity
        self.churn = churn
        self.rate = 0.0
        self._sent = sent
        self._core = WorkerCore(
            CoreSettings(
                identity.node,
                identity.boot_id,
                identity.version,
                pool_bytes=CHUNK_BYTES,
                slab_bytes=CHUNK_BYTES,
                min_slot=CHUNK_BYTES,
                delta_interval=interval,
            )
        )
        self._core.worlds.by_fingerprint[_FINGERPRINT] = _WORLD
        self.outbox = self._core.outbox
        self.link = LeaderLink(identity, None, self.feed, lambda: self._core.next_seq, self._frame_refused, Health())
        self._untold: dict[bytes, float | None] = {}
        self._owed = 0.0
        self._ticked = time.monotonic()
        for key in churn.held_keys():
            self._note(key, True)

    def feed(self, event: events.Event) -> None:
        """Let the machine handle one event and send what it says."""
        self._sent.links += isinstance(event, events.LinkUp)
        for instruction in self._core.handle(time.monotonic(), event):
            assert isinstance(instruction, Publish), instruction
            self._count(instruction)
            self.link.publish(instruction.messages)

    def tick(self, now: float) -> None:
        """Change what is held as the rate says, and let the machine tell the leader what may be told."""
        self._owed += self.rate * min(now - self._ticked, _LONGEST_GAP)
        self._ticked = now
        due, self._owed = int(self._owed), self._owed % 1
        if due and self.outbox.depth > max(_LEAST_WITHHELD, self.rate * _WITHHELD_SECONDS):
            self._sent.withheld += due
            due = 0
        for _ in range(due):
            self._note(*self.churn.change())
        self.feed(events.Tick())

    def begin_own(self) -> bytes:
        """Hold a new key from this moment on; it is told with one of the next ticks."""
        key = self.churn.begin_own()
        self._untold[key] = None
        self._note(key, True)
        return key

    def told_at(self, key: bytes) -> float | None:
        """When a key that `begin_own` gave was sent, if it was; it is forgotten by the asking."""
        return self._untold.pop(key, None)

    def _note(self, key: bytes, held: bool) -> None:
        self.outbox.note(key, _CLASS, cluster.TIER_HOST if held else 0)

    def _count(self, published: Publish) -> None:
        sent = self._sent
        for message in published.messages:
            if isinstance(message, cluster.Delta):
                sent.deltas += 1
                sent.changes += len(message.changes)
                if self._untold:
                    now = time.monotonic()
                    self._untold |= {one.key: now for one in message.changes if self._untold.get(one.key, now) is None}
            else:
                sent.others += 1
                sent.snapshots += isinstance(message, cluster.SnapshotEnd)

    def _frame_refused(self, reason: str) -> None:
        raise AssertionError(f"{self.identity.node}: the leader sent a frame that is {reason}")
