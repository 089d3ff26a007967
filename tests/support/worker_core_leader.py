"""What a leader knows of one worker core, taken from what the core publishes.

Owns the rules of the link as seen from the other side: no gap in the numbers, every world announced before its use.
"""

from blockyard.common.fencing import Epoch
from blockyard.common.messages import cluster
from blockyard.worker.core import events, instructions
from support.worker_core import Node

UID = b"cluster-uid-16by"


class Leader:
    """What a leader knows of one worker; it keeps to the rules of the link."""

    def __init__(self, node: Node, window: int = 8) -> None:
        self.node = node
        self.window = window
        self.held: set[bytes] = set()
        self.tiers: dict[bytes, int] = {}
        self.worlds: dict[int, bytes] = {}
        self.expect = 0
        self.parts: set[bytes] = set()
        self.snapshots = 0

    def take(self, out: list[instructions.Instruction]) -> list[object]:
        """Apply what was published."""
        messages: list[object] = [m for one in out if isinstance(one, instructions.Publish) for m in one.messages]
        answers: list[object] = []
        for message in messages:
            if isinstance(message, cluster.SnapshotOffer):
                answers += self.credit(message.seq, self.window)
            elif isinstance(message, cluster.SnapshotBegin):
                self.parts = set()
                self.worlds = {world.index: world.fingerprint for world in message.worlds}
            elif isinstance(message, cluster.SnapshotPart):
                assert all(change.world in self.worlds for change in message.changes)
                self.parts |= {change.key for change in message.changes}
                self.tiers |= {change.key: change.tiers for change in message.changes}
            elif isinstance(message, cluster.SnapshotEnd):
                assert len(self.parts) == message.keys
                self.held, self.expect = set(self.parts), message.seq + 1
                self.snapshots += 1
            elif isinstance(message, cluster.Delta | cluster.Replacement):
                self.apply(message)
        return messages + answers

    def credit(self, seq: int, parts: int) -> list[object]:
        """Let so many parts come; none when the window is 0."""
        return self.take(self.node.do(events.SnapshotCredited(seq, parts))) if parts else []

    def apply(self, delta: cluster.Delta | cluster.Replacement) -> None:
        assert delta.seq == self.expect
        if isinstance(delta, cluster.Replacement):
            whole = range(delta.first, delta.last + 1)
            self.held -= {key for key in self.held if key[0] == delta.bucket and key[1] in whole}
        self.worlds |= {world.index: world.fingerprint for world in delta.worlds}
        for change in delta.changes:
            assert change.world in self.worlds
            self.tiers[change.key] = change.tiers
            (self.held.add if change.tiers else self.held.discard)(change.key)
        self.expect += 1

    def link(self) -> list[object]:
        return self.take(self.node.do(events.LinkUp(Epoch(UID, 1), self.expect)))

    def tick(self) -> list[object]:
        return self.take(self.node.wait(0.1))

    def ack(self) -> None:
        self.take(self.node.do(events.LinkAcked(self.expect - 1)))
