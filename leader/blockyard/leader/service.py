"""The leader as one object: the machine, its links and its right to speak.

Owns the order of events and the rule that nothing is done as leader once the lease margin is spent by this
process's own clock. Must never know HTTP or how the election works.
"""

import asyncio
import logging
import time

from blockyard.common.config import LeaderConfig
from blockyard.common.fencing import Epoch
from blockyard.common.logs import fields
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core import events
from blockyard.leader.core.leader import LeaderCore
from blockyard.leader.core.requests import Accepted, Answer, Request
from blockyard.leader.core.settings import LeaderSettings
from blockyard.leader.election import Election
from blockyard.leader.refusals import Refusals
from blockyard.leader.roster import Roster
from blockyard.leader.worker_links import WorkerLinks

TICK_S = 0.1
STALL_S = 2.0
"""A loop that has not ticked for so long makes no progress, and its lease is left to expire."""

log = logging.getLogger(__name__)


class Service:
    """All on one loop; `feed` is complete when it returns. `join` must come before the first event."""

    election: Election
    roster: Roster

    def __init__(self, config: LeaderConfig, version: str) -> None:
        self.config = config
        self.version = version
        self.started = time.monotonic()
        self.counters = Counters("leader", strict=False)
        settings = LeaderSettings(
            config.cluster,
            version,
            max_workers=config.max_workers,
            snapshots_at_once=config.snapshots_at_once,
        )
        self.core = LeaderCore(settings, self.counters, self.started)
        self.refusals = Refusals(self.counters)
        self.links = WorkerLinks(self.feed, self.counters, self.refusals)
        self.lost_since: float | None = self.started
        self.lost_reason = "not elected yet"
        self._ticked = self.started

    def join(self, election: Election, roster: Roster) -> None:
        """Take in the two that need `feed` to be made."""
        self.election, self.roster = election, roster

    def feed(self, event: events.Event) -> None:
        """Put one event through the machine, after making sure of the lease."""
        self.leading()
        self._handle(event)

    def ask(self, request: Request) -> Answer | None:
        """Have something done in the cluster; None if this process does not lead."""
        if not self.leading():
            return None
        answer, instructions = self.core.ask(time.monotonic(), request)
        told = answer.cause if isinstance(answer, Accepted) else f"no: {answer.detail}"
        log.info("asked", extra=fields(what=type(request).__name__, answer=told))
        for instruction in instructions:
            self.links.carry_out(instruction)
        return answer

    def leading(self) -> bool:
        """Whether this process may answer as leader at this moment."""
        if self.core.epoch is None:
            return False
        if self.election.holds(time.monotonic()):
            return True
        self.lose("the lease margin is spent: etcd did not answer in time")
        return False

    def lead(self, epoch: Epoch) -> None:
        """The election was won, or a lease that seemed lost was renewed."""
        if epoch == self.core.epoch:
            return
        log.info("leads", extra=fields(epoch=epoch.number, cluster_uid=epoch.cluster_uid.hex()))
        self.lost_since = None
        self._handle(events.BecameLeader(epoch))

    def lose(self, reason: str) -> None:
        """Stop speaking as leader; what is known of the workers' claims is kept for a while."""
        if self.core.epoch is not None:
            log.warning("leads no more", extra=fields(reason=reason))
            self._handle(events.LostLeadership())
            self.lost_since = time.monotonic()
        self.lost_reason = reason

    def alive(self) -> bool:
        """Whether the loop makes progress, by which the lease may be renewed."""
        return time.monotonic() - self._ticked < STALL_S

    def awaits_list(self) -> bool:
        """Whether the machine wants etcd's list of workers anew."""
        return self.core.awaits_list

    async def tick(self) -> None:
        """Time's own event, until cancelled."""
        while True:
            self._ticked = time.monotonic()
            self.feed(events.Tick())
            await asyncio.sleep(TICK_S)

    def _handle(self, event: events.Event) -> None:
        for instruction in self.core.handle(time.monotonic(), event):
            self.links.carry_out(instruction)
