"""What a worker's state looks like in numbers, for scrapes and for the leader. Reads, and decides nothing."""

from itertools import islice
from typing import TYPE_CHECKING

from blockyard.common.messages.cluster import MAX_ENGINES, MAX_SHORT, WorkerStats
from blockyard.worker.core.chunks import ChunkState
from blockyard.worker.core.sessions import SessionState

if TYPE_CHECKING:
    from blockyard.worker.core.worker import WorkerCore

_SHOWN = {"filling": ChunkState.FILLING, "ready": ChunkState.READY, "doomed": ChunkState.DOOMED}
_PREFIX = "blockyard_worker_"


def show(core: "WorkerCore") -> None:
    """Set every gauge that the core can tell."""
    for name, value in _plain(core).items():
        core.counters.set(_PREFIX + name, value)
    _show_slots(core)
    granted = sum(len(grant.chunks) for grant in core.grants.grants.values())
    core.counters.set(_PREFIX + "pins", granted, purpose="load")
    for role in ("scheduler", "rank"):
        for state in (SessionState.LIVE, SessionState.CLOSED):
            count = sum(one.role == role and one.state is state for one in core.book.sessions.values())
            core.counters.set(_PREFIX + "sessions", count, role=role, state=state.value)


def stats(core: "WorkerCore") -> WorkerStats:
    """The sizes that the leader shows."""
    holdings = core.holdings
    pinned = {chunk.slot for grant in core.grants.grants.values() for chunk in grant.chunks.values()}
    return WorkerStats(
        pool_bytes=core.settings.pool_bytes,
        used_bytes=sum(holdings.bytes),
        ready_slots=holdings.slots[ChunkState.READY],
        pinned_slots=len(pinned),
        doomed_slots=holdings.slots[ChunkState.DOOMED],
        engines=[
            (engine.id, engine.model[:MAX_SHORT], "attached" if engine.scheduler else "waiting")
            for engine in islice(core.book.engines.values(), MAX_ENGINES)
        ],
    )


def _plain(core: "WorkerCore") -> dict[str, float]:
    oldest = core.grants.next_deadline()
    return {
        "pool_slots": core.holdings.pool.carved,
        "pool_bytes": core.settings.pool_bytes,
        "fills_in_flight": core.reservations.filling,
        "loads_in_flight": core.transfers.loads,
        "oldest_pin_age_seconds": 0 if oldest is None else core.now - oldest + core.settings.pin_ttl,
        "hinted_requests": len(core.hints),
        "checksum_backlog": core.holdings.unchecked,
        "outbox_depth": core.outbox.depth,
        "incarnation": core.incarnation,
        **_disk(core),
        **_peers(core),
    }


def _disk(core: "WorkerCore") -> dict[str, float]:
    directories = core.disk.directories.all
    return {
        "disk_copies": sum(len(segment.copies) for one in directories for segment in one.segments.values()),
        "disk_live_bytes": sum(one.live_bytes for one in directories),
        "disk_file_bytes": sum(one.file_bytes for one in directories),
        "disk_capacity_bytes": sum(one.settings.segments * one.settings.segment_bytes for one in directories),
        "disk_devices_left_alone": sum(not one.breaker.closed for one in directories),
        "disk_operations_hanging": sum(one.late for one in core.disk.operations.all.values()),
        "disk_spill_backlog": len(core.holdings.spills),
    }


def _peers(core: "WorkerCore") -> dict[str, float]:
    peers = core.peers
    return {
        "peers": len(peers.roster.by_node),
        "peers_left_alone": peers.roster.left_alone,
        "peer_fetches_in_flight": len(peers.fetching.by_number),
        "peer_serving_chunks": peers.serving.chunks,
    }


def _show_slots(core: "WorkerCore") -> None:
    holdings, pool = core.holdings, core.holdings.pool
    carved_bytes = sum(one.size_class.per_slab * one.size_class.slot_bytes for one in pool.slabs.values())
    free = pool.carved - sum(holdings.slots)
    core.counters.set(_PREFIX + "slots", free, state="free")
    core.counters.set(_PREFIX + "slot_bytes", carved_bytes - sum(holdings.bytes), state="free")
    for name, state in _SHOWN.items():
        core.counters.set(_PREFIX + "slots", holdings.slots[state], state=name)
        core.counters.set(_PREFIX + "slot_bytes", holdings.bytes[state], state=name)
