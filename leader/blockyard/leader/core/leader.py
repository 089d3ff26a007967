"""The leader's machine: events in, instructions out. The only file that changes state across the parts.

Owns who is admitted, whose claims count, and what each event sets off. Must never know sockets, etcd or a
clock.

A worker's claims count from its first snapshot until its registration ends. While its link is down they stand, marked
stale; past the grace they are forgotten. Leadership lost closes every link, ends every order, but keeps the claims: who
leads again in the same cluster goes on where each worker's stream stood. Each new term awaits the list of workers anew,
and a link of each before its answers are whole. A new cluster uid, or an epoch that went back, means that etcd was
wiped or restored: then every claim is forgotten.
"""

from collections.abc import Sequence

from blockyard.common.fencing import Epoch
from blockyard.common.identity import Key
from blockyard.common.messages import cluster as wire
from blockyard.common.metrics.counters import Counters
from blockyard.leader.core import admission, events, invariants
from blockyard.leader.core.degraded import degradations
from blockyard.leader.core.dialogue import Dialogue
from blockyard.leader.core.direction import Direction
from blockyard.leader.core.instructions import CloseLink, Instruction, SendTo
from blockyard.leader.core.journal import Journal, Transition
from blockyard.leader.core.matching import Prefix, longest_prefixes
from blockyard.leader.core.membership import Member, Membership, Waiting
from blockyard.leader.core.overflow import Overflow
from blockyard.leader.core.ownership import Ownership
from blockyard.leader.core.rebuild import Claims, TooManyKeys, Unexpected
from blockyard.leader.core.requests import Answer, Request
from blockyard.leader.core.settings import LeaderSettings
from blockyard.leader.core.views import Degradation, Holding, WorkerView

DIGESTS_CHECKED = 8
"""Every so many validations look at the digests too."""


class LeaderCore:
    """`handle` each event with monotonic seconds and carry the instructions out in order."""

    def __init__(self, settings: LeaderSettings, counters: Counters | None = None, started: float = 0.0) -> None:
        self.settings = settings
        self.counters = counters or Counters("leader")
        self.epoch: Epoch | None = None
        self.members = Membership()
        self.overflow = Overflow(settings.max_workers)
        self.index = Ownership()
        self._journal = Journal(settings.journal_changes)
        self.direction = Direction(self.members, self.index, self._journal, lambda: not self.partial, self.counters)
        self.dialogue = Dialogue(self.members, self.direction, settings)
        self._latest: Epoch | None = None
        self._unlisted_since: float | None = started
        self._list_doubted = False
        self._validations = 0

    def handle(self, now: float, event: events.Event) -> list[Instruction]:
        """What is to be done about one event."""
        done = self._handle(now, event)
        # An event may have ended a turn; whoever waits is not kept until the next Tick.
        return done + self.dialogue.give_turns(now)

    def _handle(self, now: float, event: events.Event) -> list[Instruction]:
        match event:
            case events.Received(link, message):
                return self._received(now, link, message)
            case events.LinkOpened(link, hello):
                return self._opened(now, link, hello)
            case events.LinkClosed(link):
                return self._closed(now, link)
            case events.WorkerRegistered():
                return self._registered(now, event)
            case events.WorkerUnregistered(node, incarnation):
                return self._unregistered(now, node, incarnation) + self._fill_up(now)
            case events.WorkersListed(workers):
                return self._listed(now, workers)
            case events.BecameLeader(epoch):
                return self._became_leader(now, epoch)
            case events.LostLeadership():
                return self._lost_leadership(now)
            case events.Tick():
                return self._tick(now)

    def ask(self, now: float, request: Request) -> tuple[Answer, list[Instruction]]:
        """What people want of the cluster; only while this process leads."""
        return self.direction.ask(now, request), self.direction.orders.due(now)

    def validate(self) -> None:
        """Raise InvariantBroken if anything is not as it must be; takes time in proportion to the index."""
        invariants.check_members(self.members, self.index, self.epoch, self.settings)
        invariants.check_turns(self.dialogue.turns, self.members, self.settings)
        invariants.check_orders(self.direction.orders, self.members, self.epoch)
        invariants.check_books(self.index)
        self._validations += 1
        if self._validations % DIGESTS_CHECKED == 0:
            invariants.check_digests(self.index)

    def story(self, key: Key) -> list[Transition]:
        """The remembered claims on a key, the oldest first."""
        return self._journal.story(key)

    # What the shell and the faces ask.

    @property
    def awaits_list(self) -> bool:
        """etcd's list of workers is wanted, as it stands: none came in this term, or a worker says it is outdated."""
        return self._unlisted_since is not None or self._list_doubted

    @property
    def partial(self) -> bool:
        """True while some member's claims are not all known, so that a missing key proves nothing."""
        known = self._unlisted_since is None and not len(self.overflow)
        return not known or any(member.unheard or not member.claims.in_step for member in self.members)

    def where(self, key: Key) -> list[Holding]:
        """Who holds a key, by node."""
        holdings = []
        for node, tiers in self.index.named(self.direction.purges.listed(key)):
            member = self.members.by_node[node]
            holdings.append(Holding(node, member.incarnation, tiers, member.link is None))
        return sorted(holdings, key=lambda holding: holding.node)

    def match(self, keys: Sequence[Key]) -> list[Prefix]:
        """Longest prefix per node and tier."""
        return longest_prefixes(self.index, self.direction.purges.listed, keys)

    def workers(self) -> list[WorkerView]:
        """All members, by node."""
        return [self.members.by_node[node].view() for node in sorted(self.members.by_node)]

    def degraded(self) -> list[Degradation]:
        """What makes answers less than whole now."""
        return degradations(
            self.members, self.overflow, self.dialogue.turns, self._unlisted_since, self.settings.max_workers
        )

    # Leadership and membership.

    def _became_leader(self, now: float, epoch: Epoch) -> list[Instruction]:
        known = self._latest
        if epoch != known:
            # What was followed so far may be of other data: a watch can miss that etcd was wiped.
            self._unlisted_since = now
            for member in self.members:
                member.unheard = member.link is None
        if known is not None and (epoch.cluster_uid != known.cluster_uid or epoch.number < known.number):
            for member in self.members:
                member.claims.forget()
        self.epoch = self._latest = epoch
        return []

    def _lost_leadership(self, now: float) -> list[Instruction]:
        self.epoch = None
        self.direction.end_of_term()
        done = [self._cut(now, member, "not-leader") for member in self.members if member.link is not None]
        done += [CloseLink(link, "not-leader") for link in self.members.waiting]
        self.members.waiting.clear()
        return [*done]

    def _listed(self, now: float, workers: Sequence[events.WorkerRegistered]) -> list[Instruction]:
        listed = {worker.node: worker.incarnation for worker in workers}
        done: list[Instruction] = []
        for member in list(self.members):
            # Also one that is newer than listed: the store it was registered in is no more.
            if listed.get(member.node) != member.incarnation:
                done += self._unregistered(now, member.node, member.incarnation)
        self.overflow.clear()
        for worker in workers:
            done += self._registered(now, worker)
        self._unlisted_since = None
        self._list_doubted = False
        return done

    def _registered(self, now: float, worker: events.WorkerRegistered) -> list[Instruction]:
        done: list[Instruction] = []
        member = self.members.by_node.get(worker.node)
        if member is not None and self._replaces(worker, member):
            done += self._unregistered(now, member.node, member.incarnation)
            member = None
        if member is None and len(self.members.by_node) >= self.settings.max_workers:
            self.counters.add("blockyard_leader_registrations_ignored_total")
            self.overflow.add(now, worker)
            return done
        if member is None:
            claims = Claims(worker.node, self.index, self._journal, self.counters, self.settings)
            member = Member(worker.node, worker.incarnation, worker.info, claims, now)
            self.members.add(member)
        elif worker.incarnation == member.incarnation:
            member.info = worker.info
        for link in self.members.arrivals(worker.node, member.incarnation):
            done += self._opened(now, link, self.members.waiting.pop(link).hello)
        return done

    def _replaces(self, worker: events.WorkerRegistered, member: Member) -> bool:
        """Also by the same number: in an etcd that went back, numbers come again."""
        if worker.incarnation != member.incarnation:
            return worker.incarnation > member.incarnation
        return bool(worker.info.boot_id and member.info.boot_id) and worker.info.boot_id != member.info.boot_id

    def _fill_up(self, now: float) -> list[Instruction]:
        """Take in who was ignored for want of a place, now that there may be one."""
        done: list[Instruction] = []
        while len(self.members.by_node) < self.settings.max_workers and (worker := self.overflow.take()):
            done += self._registered(now, worker)
        return done

    def _unregistered(self, now: float, node: str, incarnation: int) -> list[Instruction]:
        self.overflow.remove(node, incarnation)
        member = self.members.by_node.get(node)
        if member is None or incarnation < member.incarnation:
            return []
        done: list[Instruction] = []
        if member.link is not None:
            done.append(self._cut(now, member, "unregistered"))
        member.claims.drop()
        self.members.remove(member)
        return done

    # Links.

    def _opened(self, now: float, link: int, hello: wire.WorkerHello) -> list[Instruction]:
        refused = admission.refusal(hello, self.epoch, self.members.links, self.settings)
        if refused is not None or self.epoch is None:
            return [SendTo(link, refused), CloseLink(link, refused.code)] if refused else []
        member = self.members.by_node.get(hello.node)
        if member is None and hello.node in self.overflow.named:
            refused = admission.ignored(hello, self.settings)
            return [SendTo(link, refused), CloseLink(link, refused.code)]
        if member is None or hello.incarnation > member.incarnation:
            self.members.waiting[link] = Waiting(hello, now)
            return []
        if hello.incarnation < member.incarnation:
            refused = admission.outdated(hello, member.incarnation)
            return [SendTo(link, refused), CloseLink(link, refused.code)]
        if not member.is_life(hello.boot_id):
            self._list_doubted = True
            refused = admission.other_life(hello)
            return [SendTo(link, refused), CloseLink(link, refused.code)]
        done: list[Instruction] = []
        if member.link is not None:
            done.append(self._cut(now, member, "replaced"))
        protocol = min(hello.protocol_max, wire.PROTOCOL_MAX)
        self.members.connect(member, link, protocol, now)
        self.dialogue.begun(link)
        expect = member.claims.resume(now, hello.next_seq)
        welcome = wire.LinkWelcome(protocol, self.settings.version, self.epoch.cluster_uid, self.epoch.number, expect)
        return [*done, SendTo(link, welcome)]

    def _closed(self, now: float, link: int) -> list[Instruction]:
        self.members.waiting.pop(link, None)
        self.dialogue.ended(link)
        member = self.members.by_link.get(link)
        if member is not None:
            self.members.cut(member, now)
        return []

    def _cut(self, now: float, member: Member, reason: str) -> CloseLink:
        link = self.members.cut(member, now)
        assert link is not None
        self.dialogue.ended(link)
        return CloseLink(link, reason)

    def _received(self, now: float, link: int, message: wire.FromWorker) -> list[Instruction]:
        member = self.members.by_link.get(link)
        if member is None:
            # Cut a moment ago, or still waiting: nothing of it counts yet.
            return []
        try:
            return self.dialogue.hear(now, link, member, message)
        except Unexpected:
            self.counters.add("blockyard_leader_frames_refused_total", reason="unexpected")
            return []
        except TooManyKeys:
            member.claims.forget()
            return [self._cut(now, member, "too-many-keys")]

    # Time.

    def _tick(self, now: float) -> list[Instruction]:
        self.dialogue.turns.expire(now)
        done = [one for member in self.members for one in self._tick_member(now, member)]
        for link, waiting in list(self.members.waiting.items()):
            if now - waiting.since >= self.settings.registration_wait:
                del self.members.waiting[link]
                self._list_doubted = True
                refused = admission.unregistered(waiting.hello, self.settings.registration_wait)
                done += [SendTo(link, refused), CloseLink(link, refused.code)]
        self.index.sweep(self.settings.sweep_keys)
        return done + (self.direction.tick(now) if self.epoch is not None else [])

    def _tick_member(self, now: float, member: Member) -> list[Instruction]:
        claims = member.claims
        if claims.in_step:
            member.behind_since = None
        elif member.behind_since is None:
            member.behind_since = now
        if member.link is None:
            if now - member.since >= self.settings.claim_grace and (claims.based or claims.holder.copies):
                claims.forget()
            return []
        return self.dialogue.tick(now, member.link, member)
