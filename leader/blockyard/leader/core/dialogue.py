"""What members' links say once they are welcome, and what they are answered: claims, snapshots in turn, drift,
questions, and how orders go.

Owns the turns. Must never know who is admitted, or why a link ends; it changes nothing of a member but its claims and
its sizes.
"""

from blockyard.common.messages import cluster as wire
from blockyard.leader.core.direction import Direction
from blockyard.leader.core.instructions import Instruction, NoteDrift, SendTo
from blockyard.leader.core.membership import Member, Membership
from blockyard.leader.core.rebuild import Claims, Unexpected
from blockyard.leader.core.settings import LeaderSettings
from blockyard.leader.core.turns import Turns


class Dialogue:
    """`hear` raises Unexpected and TooManyKeys, as claims do."""

    def __init__(self, members: Membership, direction: Direction, settings: LeaderSettings) -> None:
        self._members = members
        self._direction = direction
        self._settings = settings
        self.turns = Turns(settings.snapshots_at_once, settings.resync_patience)

    def hear(self, now: float, link: int, member: Member, message: wire.FromWorker) -> list[Instruction]:
        """One message of a member's link."""
        answer = self._claimed(now, link, member, message)
        done: list[Instruction] = [] if answer is None else [SendTo(link, answer)]
        return done + self._look_for_drift(now, member) if isinstance(message, wire.Digests) else done

    def begun(self, link: int) -> None:
        """The link is about to be welcomed."""
        self._direction.linked(link)

    def ended(self, link: int) -> None:
        """The link is gone, or about to go."""
        self.turns.leave(link)
        self._direction.ended(link)

    def give_turns(self, now: float) -> list[Instruction]:
        """Let in whoever has waited longest, as far as turns are free."""
        done: list[Instruction] = []
        for link, seq in self.turns.give(now):
            self._members.by_link[link].claims.wait(now)
            done.append(SendTo(link, wire.SnapshotCredit(seq, self._settings.snapshot_window)))
        return done

    def tick(self, now: float, link: int, member: Member) -> list[Instruction]:
        """What is due on one link: acknowledge, ask again, compare."""
        claims = member.claims
        done: list[Instruction] = []
        if claims.acked < claims.applied:
            claims.acked = claims.applied
            done.append(SendTo(link, wire.Ack(claims.applied)))
        if link in self.turns.waiting:
            claims.wait(now)
        if (resync := claims.overdue(now)) is not None:
            done.append(SendTo(link, resync))
        return done + self._look_for_drift(now, member)

    def _claimed(self, now: float, link: int, member: Member, message: wire.FromWorker) -> wire.ToWorker | None:
        claims = member.claims
        match message:
            case wire.Delta() | wire.Replacement():
                return claims.delta(now, message)
            case wire.SnapshotOffer(seq):
                claims.offered(now, message)
                self.turns.ask(link, seq)
            case wire.SnapshotBegin():
                claims.begin(now, message)
                self.turns.moved(now, link)
            case wire.SnapshotPart():
                return claims.part(now, message) or self._credit(now, link, claims)
            case wire.SnapshotEnd():
                self.turns.leave(link)
                return claims.end(now, message)
            case wire.Digests():
                claims.digests(message)
            case wire.WorkerStats():
                member.stats = message
            case wire.Locate() if member.protocol >= wire.PROTOCOL_PEERS:
                return self._direction.locate(member, message)
            case wire.OrderReport() if member.protocol >= wire.PROTOCOL_PEERS:
                self._direction.orders.reported(link, message)
            case wire.Locate() | wire.OrderReport():
                raise Unexpected("a message of another version")
            case wire.Ping(number):
                return wire.Pong(number)
            case wire.WorkerHello():
                raise Unexpected("a second hello")
        return None

    def _credit(self, now: float, link: int, claims: Claims) -> wire.SnapshotCredit | None:
        """A part is in, so one more may come; told for half a window at a time."""
        turn, collecting = self.turns.moved(now, link), claims.collecting
        window = self._settings.snapshot_window
        if turn is None or collecting is None or collecting.parts % max(1, window // 2):
            return None
        return wire.SnapshotCredit(turn.seq, collecting.parts + window)

    def _look_for_drift(self, now: float, member: Member) -> list[Instruction]:
        buckets = member.claims.drifted(now)
        if not buckets or member.link is None:
            return []
        note = NoteDrift(member.link, member.node, tuple(buckets))
        return [note, SendTo(member.link, member.claims.repair(now, buckets))]
