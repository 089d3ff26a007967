"""The worker's declarations. Plain data: a metric stands here only if something moves it."""

from __future__ import annotations

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.metrics import worker_peer_links, worker_peers
from blockyard.common.metrics.spec import Equality, Kind, Label, Metric, Part
from blockyard.common.slot_table import SlotState

TIER = Label("tier", ("host", "disk", "peer"))
DISK_FAULT = Label("reason", ("full", "io", "corrupt", "gone", "busy"))
DISK_BREAKER_REASON = Label("reason", ("io", "hung"))
LEG = Label("leg", ("gpu_to_host", "host_to_gpu"))
MISS_REASON = Label(
    "reason",
    tuple(
        state.label
        for state in (
            KeyState.NEVER_STORED,
            KeyState.EVICTED_HOST,
            KeyState.EVICTED_DISK,
            KeyState.NOT_ADMITTED,
            KeyState.BEING_FILLED,
            KeyState.PIN_BUDGET,
            KeyState.DEADLINE,
            KeyState.FINGERPRINT,
            KeyState.CORRUPT,
            KeyState.DISABLED,
            KeyState.PEER_GONE,
            KeyState.LEADER_UNKNOWN,
        )
    ),
)

# What a rank may say of a copy that did not end well, then what the worker finds out by itself.
_COPY_FAULTS = tuple(
    state.label
    for state in (
        CopyState.STALE,
        CopyState.CORRUPT,
        CopyState.DEADLINE,
        CopyState.CANCELLED,
        CopyState.COPY_ERROR,
        CopyState.DETACHED,
        CopyState.NO_ROOM,
        CopyState.UNKNOWN_JOB,
    )
)
FILL_REFUSED_REASON = Label("reason", (CopyState.NO_ROOM.label, "fill-budget"))
FILL_DROP_REASON = Label("reason", (*_COPY_FAULTS, "engine-gone", "purge"))
LOAD_REFUSED_REASON = Label("reason", (CopyState.STALE.label, CopyState.UNKNOWN_JOB.label))
LOAD_FAIL_REASON = Label("reason", (*_COPY_FAULTS, "engine-gone"))
EVICTION_REASON = Label("reason", ("room", "slab", "purge"))
SLOT_STATE = Label("state", tuple(state.name.lower() for state in SlotState))
PIN_PURPOSE = Label("purpose", ("load",))
ROLE = Label("role", ("scheduler", "rank"))
SESSION_STATE = Label("state", ("live", "lost"))
FRAME_REASON = Label("reason", ("malformed", "empty", "oversize", "unexpected", "unknown"))
HANDSHAKE_REASON = Label("reason", ("timeout", "malformed", "version", "pidfd", "busy", "gone"))
ATTACH_REASON = Label("reason", ("version", "size", "shape", "ranks", "busy", "fingerprint", "draining"))
HINT = Label("field", ("priority", "ttl", "session", "release", "pin"))
LINK_STATE = Label("state", ("disabled", "down", "live", "refused"))
REGISTRATION_STATE = Label("state", ("disabled", "pending", "registered", "lost"))


def _counter(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_worker_{name}", Kind.COUNTER, Part.WORKER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_worker_{name}", Kind.GAUGE, Part.WORKER, meaning, labels)


LOOKUPS = (
    _counter("acquire_requests_total", "Acquire messages answered."),
    _counter("acquire_keys_total", "Keys (one chunk each) that acquire messages asked for."),
    _counter("acquire_tokens_total", "Tokens of the chunks that acquire messages asked for."),
    _counter("hit_chunks_total", "Chunks answered as ready and pinned.", TIER),
    _counter("hit_tokens_total", "Tokens of the chunks answered as ready and pinned.", TIER),
    _counter("miss_chunks_total", "Chunks not given to the engine, by the one reason why.", MISS_REASON),
    _counter("miss_tokens_total", "Tokens of the chunks not given to the engine.", MISS_REASON),
)

FILLS = (
    _counter("fills_asked_total", "Chunks that fill messages asked slots for."),
    _counter("fills_duplicate_total", "Chunks asked for that were already there or being filled."),
    _counter("fills_refused_total", "Chunks asked for that got no slot.", FILL_REFUSED_REASON),
    _counter("fills_started_total", "Chunks that got a slot bound to their key."),
    _counter("fills_committed_total", "Fills that became visible: every local rank had filled its area."),
    _counter("fills_dropped_total", "Fills given up before commit.", FILL_DROP_REASON),
    _gauge("fills_in_flight", "Fills started and neither committed nor dropped yet."),
)

LOADS = (
    _counter("loads_refused_total", "Areas (a rank's share of a chunk) not given for a load.", LOAD_REFUSED_REASON),
    _counter("loads_resolved_total", "Areas given to a rank for a load."),
    _counter("loads_completed_total", "Areas whose load ended well."),
    _counter("loads_failed_total", "Areas whose load ended otherwise.", LOAD_FAIL_REASON),
    _gauge("loads_in_flight", "Areas given for a load that has not ended yet."),
)

COPIES = (
    _counter("copy_bytes_total", "Bytes copied between GPU and host pool, as engines report them.", LEG),
    _counter("copy_seconds_total", "Seconds engines spent copying (sum over ranks).", LEG),
)

POOL = (
    _gauge("pool_slots", "Slots of the slabs that are carved for some chunk size."),
    _gauge("pool_bytes", "Bytes of the host pool."),
    _gauge("slots", "Slots of the host pool by state.", SLOT_STATE),
    _gauge("slot_bytes", "Bytes of the slots in each state.", SLOT_STATE),
    _counter("evictions_total", "Ready chunks removed to make room or by order, by why.", EVICTION_REASON),
    _gauge("pins", "Pins held, by purpose.", PIN_PURPOSE),
    _gauge("oldest_pin_age_seconds", "Age of the oldest pin held; 0 without pins."),
    _gauge("checksum_backlog", "Committed chunks whose checksum is not yet in the slot table."),
    _counter("checksum_mismatches_total", "Chunks whose bytes did not match their checksum."),
    _counter("quarantined_total", "Chunks put aside for bad bytes."),
)

HINTS = (
    _counter("hints_total", "Hints that requests came with, by name.", HINT),
    _counter("hints_dropped_total", "Requests whose hints were not kept, since their engine had too many."),
    _gauge("hinted_requests", "Requests whose hints are kept."),
)

DISK = (
    _counter("disk_writes_started_total", "Chunks whose write to disk began."),
    _counter("disk_writes_completed_total", "Chunks written to disk."),
    _counter("disk_writes_failed_total", "Chunks whose write came to nothing.", DISK_FAULT),
    _counter("disk_written_bytes_total", "Bytes written to disk."),
    _counter("disk_moved_bytes_total", "Bytes of copies that moved on when their segment was given back."),
    _counter("disk_spills_dropped_total", "Chunks that left host memory before their turn to be written."),
    _counter("disk_reads_completed_total", "Chunks read from disk and verified."),
    _counter("disk_reads_failed_total", "Reads from disk that came to nothing.", DISK_FAULT),
    _counter("disk_read_bytes_total", "Bytes read from disk."),
    _counter("disk_evictions_total", "Copies given up because their segment was."),
    _counter("disk_segments_reclaimed_total", "Segments chosen to be given back."),
    _counter("disk_breaker_opened_total", "Times a device was left alone.", DISK_BREAKER_REASON),
    _gauge("disk_copies", "Chunks with a copy on disk."),
    _gauge("disk_live_bytes", "Bytes of those copies."),
    _gauge("disk_file_bytes", "Bytes of all segment files."),
    _gauge("disk_capacity_bytes", "Bytes that the files may have together."),
    _gauge("disk_devices_left_alone", "Directories whose device is not used at the moment."),
    _gauge("disk_operations_hanging", "Operations that have taken too long and have not ended."),
    _gauge("disk_spill_backlog", "Chunks that should be on disk and are not."),
)

LINKS = (
    _gauge(
        "sessions",
        "Engine sessions by role; a lost one has no link but its process may live.",
        ROLE,
        SESSION_STATE,
    ),
    _counter("frames_refused_total", "Frames from engines, the leader or other workers refused.", FRAME_REASON),
    _counter("handshakes_refused_total", "Connections that ended before a valid Hello.", HANDSHAKE_REASON),
    _counter("attaches_refused_total", "Attach requests refused, by why.", ATTACH_REASON),
    _gauge("outbox_depth", "Ownership changes not yet acknowledged by the leader."),
    _counter("outbox_dropped_total", "Ownership changes dropped because the outbox was full."),
    _counter("outbox_resyncs_total", "Snapshots sent in place of changes."),
    _counter("outbox_repairs_total", "Buckets of keys that the leader asked for again, as its digests differed."),
    _gauge("leader_link", "1 for the state that the link to the leader is in.", LINK_STATE),
    _gauge("etcd_registration", "1 for the state that the registration is in.", REGISTRATION_STATE),
)

PROCESS = (
    _gauge("incarnation", "Create-revision of this worker's registration; 0 before the first."),
    _gauge("uptime_seconds", "Seconds since this worker started."),
    _gauge("build_info", "Always 1; the labels say what runs.", Label("version"), Label("python")),
    _counter("metric_updates_refused_total", "Updates of undeclared metrics or labels, dropped."),
)

METRICS: tuple[Metric, ...] = (
    LOOKUPS
    + FILLS
    + LOADS
    + COPIES
    + POOL
    + HINTS
    + DISK
    + worker_peers.METRICS
    + LINKS
    + worker_peer_links.METRICS
    + PROCESS
)

EQUALITIES = (
    *worker_peers.EQUALITIES,
    Equality(
        "misses-explained",
        "blockyard_worker_acquire_tokens_total",
        ("blockyard_worker_hit_tokens_total", "blockyard_worker_miss_tokens_total"),
        "Every token looked up is a hit in one tier or a miss for one reason.",
    ),
    Equality(
        "misses-explained-chunks",
        "blockyard_worker_acquire_keys_total",
        ("blockyard_worker_hit_chunks_total", "blockyard_worker_miss_chunks_total"),
        "The same for chunks.",
    ),
    Equality(
        "fills-answered-once",
        "blockyard_worker_fills_asked_total",
        (
            "blockyard_worker_fills_started_total",
            "blockyard_worker_fills_duplicate_total",
            "blockyard_worker_fills_refused_total",
        ),
        "Every chunk asked for gets a slot, is a duplicate or is refused.",
    ),
    Equality(
        "fills-end-once",
        "blockyard_worker_fills_started_total",
        (
            "blockyard_worker_fills_committed_total",
            "blockyard_worker_fills_dropped_total",
            "blockyard_worker_fills_in_flight",
        ),
        "Every fill started ends in exactly one way or is still in flight.",
    ),
    Equality(
        "loads-end-once",
        "blockyard_worker_loads_resolved_total",
        (
            "blockyard_worker_loads_completed_total",
            "blockyard_worker_loads_failed_total",
            "blockyard_worker_loads_in_flight",
        ),
        "Every load resolved ends in exactly one way or is still in flight.",
    ),
    Equality(
        "books-balance",
        "blockyard_worker_pool_slots",
        ("blockyard_worker_slots",),
        "Every slot is in exactly one state.",
    ),
)
