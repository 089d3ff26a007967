"""What can happen to a worker, as its shell tells the core. Owns the vocabulary; must never know who
produces it.
"""

import msgspec

from blockyard.common.fencing import Epoch
from blockyard.common.messages import attach
from blockyard.worker.core.disk.wire import DiskEvent
from blockyard.worker.core.peers.wire import PeerEvent


class _Event(msgspec.Struct, frozen=True):
    pass


class AttachAsked(_Event):
    """A process sent its Hello together with a pidfd. `session` is the shell's number for it: unique, from
    1.
    """

    session: int
    hello: attach.Hello


class Received(_Event):
    """A later message of a session that was accepted."""

    session: int
    message: attach.FromEngine


class SessionClosed(_Event):
    """The session's socket is gone. Its process may live and its copies may still run."""

    session: int


class ProcessGone(_Event):
    """The session's process is dead (its pidfd became readable): nothing of it touches the pool any more."""

    session: int


class ChecksumDone(_Event):
    """ComputeChecksum succeeded: one xxh3-64 per area."""

    slot: int
    generation: int
    checksums: tuple[int, ...]


class ChecksumFailed(_Event):
    """ComputeChecksum failed; the chunk can never be verified."""

    slot: int
    generation: int
    detail: str


class LinkUp(_Event):
    """The leader welcomed us. `expect_seq` is the next Delta it can apply, 0 when it needs a snapshot.

    `history` counts how often etcd was seen to go back.
    """

    epoch: Epoch
    expect_seq: int
    history: int = 0


class LinkDown(_Event):
    """The link to the leader is gone."""


class LinkAcked(_Event):
    """The leader has applied every Delta up to and including `seq`."""

    seq: int


class ResyncAsked(_Event):
    """The leader lacks Deltas from `from_seq` on, or (0) everything."""

    from_seq: int


class SnapshotCredited(_Event):
    """The leader takes the first `parts` parts of the snapshot as of Delta `seq`."""

    seq: int
    parts: int


class RepairAsked(_Event):
    """The leader's digests of these buckets differ from ours."""

    buckets: bytes


class Incarnated(_Event):
    """This worker is newly registered in etcd: its claims start over at seq 1, over a new link."""

    incarnation: int


class DrainAsked(_Event):
    """The worker is about to stop: say so to every session and admit no more."""

    reason: str


class Tick(_Event):
    """Time has passed. At least every 100 ms, and at `next_deadline()`."""


Event = (
    AttachAsked
    | Received
    | SessionClosed
    | ProcessGone
    | ChecksumDone
    | ChecksumFailed
    | LinkUp
    | LinkDown
    | LinkAcked
    | ResyncAsked
    | SnapshotCredited
    | RepairAsked
    | Incarnated
    | DrainAsked
    | DiskEvent
    | PeerEvent
    | Tick
)
