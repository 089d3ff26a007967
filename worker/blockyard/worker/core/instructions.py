"""What a worker's shell has to do, in the order given. Owns the vocabulary; must never know how it is done."""

import msgspec

from blockyard.common.messages import attach, cluster
from blockyard.common.slot_table import SlotRecord
from blockyard.worker.core.disk.wire import DiskInstruction
from blockyard.worker.core.peers.wire import PeerInstruction


class _Instruction(msgspec.Struct, frozen=True):
    pass


class Accept(_Instruction):
    """Admit a session: send the welcome, to a rank with the descriptors of pool and table."""

    session: int
    message: attach.Welcome
    with_memory: bool


class Send(_Instruction):
    """Send one message on a session. If that fails the shell reports SessionClosed."""

    session: int
    message: attach.ToEngine


class CloseSession(_Instruction):
    """Close the session's socket after what was sent. Its pidfd is watched on until Unwatch."""

    session: int
    reason: str


class Unwatch(_Instruction):
    """Nothing of this session is left: its pidfd may be closed, and no event of it is needed any more."""

    session: int


class WriteSlot(_Instruction):
    """Write one slot's record to the slot table, before anything later in the list is done."""

    slot: int
    record: SlotRecord


class ComputeChecksum(_Instruction):
    """Hash the areas of a slot off the loop; answered by exactly one ChecksumDone or ChecksumFailed.

    Area i is `area_bytes` at `offset + i * area_stride` in the pool. The slot may change meanwhile: the
    answer carries the generation, and an outdated one is ignored.
    """

    slot: int
    generation: int
    offset: int
    area_bytes: int
    areas: int
    area_stride: int


ToLeader = (
    cluster.Delta
    | cluster.Replacement
    | cluster.SnapshotOffer
    | cluster.SnapshotBegin
    | cluster.SnapshotPart
    | cluster.SnapshotEnd
    | cluster.Digests
    | cluster.WorkerStats
    | cluster.Locate
    | cluster.OrderReport
)


class Publish(_Instruction):
    """Send messages to the leader, in order; dropped when the link has just gone (LinkUp says what is
    missing).
    """

    messages: list[ToLeader]


Instruction = (
    Accept | Send | CloseSession | Unwatch | WriteSlot | ComputeChecksum | Publish | DiskInstruction | PeerInstruction
)
