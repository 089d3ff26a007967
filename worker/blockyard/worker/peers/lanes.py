"""What waits for which peer, and the connections to it. Owns the order of work and the bounds; touches no slot.

A peer is used by at most `CONNECTIONS` fetches at a time, and all peers by as many as there are threads; whose turn it
is goes round among the peers that have something waiting, so that one that hangs holds up its own fetches alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from blockyard.common.messages import peer
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.channel import Channel

CONNECTIONS = 2
_IDLE_SECONDS = 30.0
"""Less than the other side bears."""

LaneKey = tuple[str, int, str]


@dataclass(slots=True, eq=False)
class Job:
    """Items of one order that one message can ask for. `open` are those that have not ended, by operation."""

    order: wire.FetchChunks
    deadline: float
    open: dict[int, wire.FetchItem]
    cancelled: set[int] = field(default_factory=set)
    channel: Channel[peer.ToReader] | None = None
    """While it is on its way."""

    @property
    def unwanted(self) -> bool:
        return self.cancelled >= self.open.keys()


@dataclass(slots=True, eq=False)
class Lane:
    """One life of one peer at one address."""

    waiting: deque[Job] = field(default_factory=deque)
    active: int = 0
    idle: list[tuple[Channel[peer.ToReader], float]] = field(default_factory=list)


class Lanes:
    """Not safe to use from several threads at once: its owner has a lock."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, Lane] = {}
        self.waiting = 0

    @property
    def connections(self) -> int:
        """Open now."""
        return sum(lane.active + len(lane.idle) for lane in self._lanes.values())

    def add(self, job: Job) -> None:
        """It waits for its peer."""
        self._lanes.setdefault(_key(job), Lane()).waiting.append(job)
        self.waiting += 1

    def begin(self) -> Job | None:
        """The next that may be begun; its peer is used by it until `ended`."""
        for key, lane in self._lanes.items():
            if lane.waiting and lane.active < CONNECTIONS:
                lane.active += 1
                self.waiting -= 1
                self._lanes[key] = self._lanes.pop(key)
                return lane.waiting.popleft()
        return None

    def ended(self, job: Job) -> None:
        """Its peer is free for another."""
        self._lanes[_key(job)].active -= 1

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """These wait no more."""
        for job in jobs:
            self._lanes[_key(job)].waiting.remove(job)
            self.waiting -= 1

    def late(self, now: float) -> list[Job]:
        """Those that wait beyond their deadline."""
        return [job for lane in self._lanes.values() for job in lane.waiting if job.deadline <= now]

    def all_waiting(self) -> list[Job]:
        return [job for lane in self._lanes.values() for job in lane.waiting]

    def waits(self, job: Job) -> bool:
        return job in self._lanes[_key(job)].waiting

    def take_idle(self, job: Job) -> Channel[peer.ToReader] | None:
        """The connection to its peer that was used last, if one is open."""
        idle = self._lanes[_key(job)].idle
        return idle.pop()[0] if idle else None

    def keep(self, job: Job, channel: Channel[peer.ToReader]) -> None:
        """A connection that can be used again."""
        self._lanes[_key(job)].idle.append((channel, time.monotonic()))

    def unused(self, now: float) -> list[Channel[peer.ToReader]]:
        """Connections that have been idle for too long, taken out; peers without anything are forgotten."""
        old: list[Channel[peer.ToReader]] = []
        for key, lane in list(self._lanes.items()):
            old += [channel for channel, since in lane.idle if now - since >= _IDLE_SECONDS]
            lane.idle = [(channel, since) for channel, since in lane.idle if now - since < _IDLE_SECONDS]
            if not (lane.waiting or lane.active or lane.idle):
                del self._lanes[key]
        return old


def _key(job: Job) -> LaneKey:
    return job.order.node, job.order.incarnation, job.order.address
