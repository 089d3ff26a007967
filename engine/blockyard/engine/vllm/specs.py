"""What travels from the scheduler process to the ranks with a transfer job, and what comes back of a failed one.

Keys and a job, never slots: each rank resolves the places at its own node's worker. Values only.
"""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.v1.kv_offload.base import LoadStoreSpec, OffloadKey

from blockyard.common.identity import Key
from blockyard.engine.jobs import BlockRange
from blockyard.engine.vllm.epochs import Change


@dataclass(frozen=True, slots=True)
class ChunkSpec(LoadStoreSpec):
    """Chunks of one transfer, in the order in which their GPU blocks are listed. `grant` pins a load; 0 for a store.

    A store names its GPU blocks itself: vLLM's own list of them leaves out those that a window has left behind, without
    a word on which. `heard`: changes of each rank's weights that the scheduler knew of.
    """

    job: int
    grant: int
    keys: tuple[Key, ...]
    offload_keys: tuple[OffloadKey, ...]
    blocks: tuple[BlockRange, ...] = ()
    heard: tuple[int, ...] = ()


@dataclass
class BlockyardConnectorMetadata(OffloadingConnectorMetadata):
    """What the ranks are to do with one step. `idle`: nothing is computed in it; `heard`: as in ChunkSpec."""

    idle: bool = False
    step: int = 0
    heard: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """Keys of a load that did not arrive, and the bounded word for why the first of them did not."""

    keys: frozenset[OffloadKey]
    reason: str

    def joined(self, other: "FailedLoad") -> "FailedLoad":
        """The same load as two ranks saw it."""
        return FailedLoad(self.keys | other.keys, self.reason)


@dataclass
class BlockyardWorkerMetadata(OffloadingWorkerMetadata):
    """A rank's report of one step. `failed_loads`: by vLLM's job id, given once its copies have ended.

    `changes`: by rank, of its weights; told until the scheduler is known to have heard.
    """

    failed_loads: dict[int, FailedLoad] = field(default_factory=dict)
    changes: dict[int, Change] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "BlockyardWorkerMetadata":
        """Join two ranks' reports; a key is failed when any rank failed it."""
        assert isinstance(other, OffloadingWorkerMetadata)
        base = OffloadingWorkerMetadata.aggregate(self, other)
        failed, changes = dict(self.failed_loads), dict(self.changes)
        if isinstance(other, BlockyardWorkerMetadata):
            changes.update(other.changes)
            for job, load in other.failed_loads.items():
                failed[job] = failed[job].joined(load) if job in failed else load
        return BlockyardWorkerMetadata(base.completed_jobs, base.transfer_stats, failed, changes)
