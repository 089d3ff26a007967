"""The worker's declarations. Plain data: a metric stands here only if something moves it."""

from __future__ import annotations

from blockyard.common.metrics.spec import Equality, Kind, Label, Metric, Part

TIER = Label("tier", ("host",))
LEG = Label("leg", ("gpu_to_host", "host_to_gpu"))
MISS_REASON = Label(
    "reason",
    ("never-stored", "evicted-host", "being-filled", "pin-budget", "fingerprint", "corrupt", "disabled"),
)
FILL_DROP_REASON = Label(
    "reason", ("no-credit", "deadline", "aborted", "copy-failed", "engine-lost", "malformed", "quarantined")
)
LOAD_FAIL_REASON = Label(
    "reason", ("deadline", "aborted", "copy-failed", "engine-lost", "checksum", "generation", "malformed")
)
EVICTION_REASON = Label("reason", ("room", "slab", "purge"))
SLOT_STATE = Label("state", ("free", "credited", "filling", "ready", "doomed"))
PIN_PURPOSE = Label("purpose", ("load", "fill", "checksum"))
ROLE = Label("role", ("scheduler", "rank"))
SESSION_STATE = Label("state", ("live", "lost"))
FRAME_REASON = Label("reason", ("malformed", "unknown", "too-large", "unexpected"))
ATTACH_REASON = Label("reason", ("version", "cluster", "fingerprint", "size", "layout", "duplicate", "busy"))
LINK_STATE = Label("state", ("disabled", "connecting", "live", "refused"))
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
    _counter("fills_started_total", "Fills that bound a slot to a key."),
    _counter("fills_committed_total", "Fills that became visible: every local rank had filled its area."),
    _counter("fills_duplicate_total", "Fills whose key was already visible at commit; the slot went back."),
    _counter("fills_dropped_total", "Fills given up before commit.", FILL_DROP_REASON),
    _gauge("fills_in_flight", "Fills started and not yet committed, duplicate or dropped."),
)

LOADS = (
    _counter("loads_resolved_total", "Load jobs that a rank was given slots for."),
    _counter("loads_completed_total", "Load jobs that ended with every byte in GPU memory."),
    _counter("loads_failed_total", "Load jobs that ended otherwise.", LOAD_FAIL_REASON),
    _gauge("loads_in_flight", "Load jobs resolved and not yet ended."),
)

COPIES = (
    _counter("copy_bytes_total", "Bytes copied between GPU and host pool, as engines report them.", LEG),
    _counter("copy_seconds_total", "Seconds engines spent copying (sum over ranks).", LEG),
)

POOL = (
    _gauge("pool_slots", "Slots of the host pool."),
    _gauge("pool_bytes", "Bytes of the host pool."),
    _gauge("slots", "Slots of the host pool by state.", SLOT_STATE),
    _gauge("slot_bytes", "Bytes of the slots in each state.", SLOT_STATE),
    _counter("evictions_total", "Ready chunks removed, by why.", EVICTION_REASON),
    _gauge("pins", "Pins held, by purpose.", PIN_PURPOSE),
    _gauge("oldest_pin_age_seconds", "Age of the oldest pin held; 0 without pins."),
    _gauge("checksum_backlog", "Committed chunks whose checksum is not yet in the slot table."),
    _counter("checksum_mismatches_total", "Chunks whose bytes did not match their checksum."),
    _counter("quarantined_total", "Chunks put aside for bad bytes."),
)

LINKS = (
    _gauge("sessions", "Engine sessions by role; lost ones still hold doomed slots.", ROLE, SESSION_STATE),
    _counter("frames_refused_total", "Frames from engines or the leader refused.", FRAME_REASON),
    _counter("attaches_refused_total", "Attach requests refused, by why.", ATTACH_REASON),
    _gauge("outbox_depth", "Ownership changes not yet acknowledged by the leader."),
    _counter("outbox_dropped_total", "Ownership changes dropped because the outbox was full."),
    _counter("outbox_resyncs_total", "Snapshots sent in place of changes."),
    _gauge("leader_link", "1 for the state that the link to the leader is in.", LINK_STATE),
    _gauge("etcd_registration", "1 for the state that the registration is in.", REGISTRATION_STATE),
)

PROCESS = (
    _gauge("incarnation", "Create-revision of this worker's registration; 0 before the first."),
    _gauge("uptime_seconds", "Seconds since this worker started."),
    _gauge("build_info", "Always 1; the labels say what runs.", Label("version"), Label("python")),
    _counter("metric_updates_refused_total", "Updates of undeclared metrics or labels, dropped."),
)

METRICS: tuple[Metric, ...] = LOOKUPS + FILLS + LOADS + COPIES + POOL + LINKS + PROCESS

EQUALITIES = (
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
        "fills-end-once",
        "blockyard_worker_fills_started_total",
        (
            "blockyard_worker_fills_committed_total",
            "blockyard_worker_fills_duplicate_total",
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
        "Every slot of the pool is in exactly one state.",
    ),
)
