"""One leader: the production core, its tenure of the election key, and what it believes, in words.

Owns the order that production's service keeps: before each event it makes sure of its lease by its own clock. Every
event is followed by a check of all invariants.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from blockyard.common.etcd.tenure import Tenure
from blockyard.common.fencing import Epoch
from blockyard.common.identity import Key
from blockyard.common.messages import cluster
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core import events
from blockyard.leader.core.instructions import CloseLink, Instruction, NoteDrift, SendTo
from blockyard.leader.core.leader import LeaderCore
from blockyard.leader.core.settings import LeaderSettings
from scenarios import words
from scenarios.counts import Counts

if TYPE_CHECKING:
    from scenarios.links import Link
    from scenarios.world import World

TTL = 10
MARGIN = TTL / 4
_COUNTED = ("delta_gaps", "frames_refused", "registrations_ignored")


class Leader:
    """`news` are changes of registrations that etcd has told and that have not been delivered."""

    def __init__(self, world: World, name: str, settings: LeaderSettings) -> None:
        self._world = world
        self.name = name
        self.core = LeaderCore(settings, Counters("leader"), world.now)
        self.news: deque[events.WorkerRegistered | events.WorkerUnregistered] = deque()
        self.paused = False
        self.links: dict[int, Link] = {}
        self._tenure: Tenure | None = None
        self._believed = self.beliefs()
        self._counts = Counts(self.core.counters, "blockyard_leader_", _COUNTED)

    def feed(self, event: events.Event) -> None:
        """One event, once the lease is known to stand."""
        if self.core.epoch is not None and not (self._tenure and self._tenure.held(self._world.now)):
            self._world.say(f"{self.name}", "leads no more: by its own clock its lease may be over")
            self.handle(events.LostLeadership())
        self.handle(event)

    def elected(self, epoch: Epoch) -> None:
        self._tenure = Tenure.begun(epoch.number, epoch.number, TTL, self._world.now, MARGIN)
        self.handle(events.BecameLeader(epoch))

    def renew(self) -> None:
        """etcd answers: the lease counts from now."""
        if self._tenure is not None and self._tenure.held(self._world.now):
            self._tenure = self._tenure.renewed(TTL, self._world.now, MARGIN)

    def handle(self, event: events.Event) -> None:
        self.carry_out(self.core.handle(self._world.now, event))

    def carry_out(self, instructions: list[Instruction]) -> None:
        """Send, close and tell, then check all invariants."""
        for instruction in instructions:
            link = self.links.get(instruction.link)
            if link is None:
                continue
            match instruction:
                case SendTo(_, message):
                    self._world.say(f"{self.name} sends {link.worker}:", words.message(message, self._world.names))
                    link.send(False, message)
                case CloseLink(number, reason):
                    self._world.say(f"{self.name} closes", f"the link of {link.worker} ({reason})")
                    link.leader_open = False
                    del self.links[number]
                case NoteDrift(_, node, buckets):
                    found = " ".join(f"{bucket:02x}" for bucket in buckets)
                    self._world.say(f"{self.name} logs", f"that its index is wrong about {node} in buckets {found}")
        self.core.validate()

    def heard(self, link: Link, message: cluster.FromWorker) -> None:
        """A message of a link was delivered."""
        if link.greeted:
            self.feed(events.Received(link.number, message))
        elif isinstance(message, cluster.WorkerHello):
            link.greeted = True
            self.links[link.number] = link
            self.feed(events.LinkOpened(link.number, message))

    def lost(self, link: Link) -> None:
        """This end notices that the link is over."""
        link.leader_open = False
        if self.links.pop(link.number, None) is not None:
            self.feed(events.LinkClosed(link.number))

    def misremember(self, node: str, key: Key) -> None:
        """Turn what the index says of this key and worker into its opposite."""
        held = any(one.node == node for one in self.core.where(key))
        wrong = cluster.Change(key, 0 if held else cluster.TIER_HOST, 0, 0, 0)
        self.core.index.apply(self.core.members.by_node[node].claims.holder, [wrong])

    def beliefs(self) -> dict[str, str]:
        """Whether it leads, who is a member, how and with what, and whether a missing key proves anything."""
        names, epoch = self._world.names, self.core.epoch
        if epoch is None:
            return {"": "it does not lead"}
        told = {"": f"it leads with epoch {epoch.number}"}
        for view in self.core.workers():
            held = [key for key in names.keys.values() if any(one.node == view.node for one in self.core.where(key))]
            told[view.node] = f"{view.node} is {view.state}, holds {names.listed(held)}"
        return told | {"*": f"answers are {'partial' if self.core.partial else 'whole'}"}

    def observe(self) -> None:
        """Say what has changed in what it believes, and which counters have moved."""
        for count in self._counts.moved():
            self._world.say(f"{self.name} counts:", count)
        before, self._believed = self._believed, self.beliefs()
        if self.core.epoch is not None:
            for node in before.keys() - self._believed.keys():
                self._world.say(f"{self.name} believes:", f"{node} is gone")
        for about, belief in self._believed.items():
            if before.get(about) != belief:
                self._world.say(f"{self.name} believes:", belief)
