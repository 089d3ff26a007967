"""The leader's declarations. Plain data: a metric stands here only if something moves it."""

from __future__ import annotations

from typing import get_args

from blockyard.common.messages.cluster import OrderKind
from blockyard.common.metrics.spec import Equality, Kind, Label, Metric, Part

WORKER_STATE = Label("state", ("live", "partial", "lost"))
ROUTE = Label(
    "route",
    (
        "/v1/match",
        "/v1/where",
        "/v1/workers",
        "/v1/prefetch",
        "/v1/purge",
        "/v1/drain",
        "/v1/orders",
        "/metrics",
        "/healthz",
        "/readyz",
        "/debug/invariants",
        "other",
    ),
)
CODE = Label("code", ("2xx", "3xx", "4xx", "5xx"))
LINK_REASON = Label(
    "reason",
    (
        "crowded",
        "tls",
        "hello",
        "identity",
        "version",
        "cluster",
        "not-leader",
        "uid",
        "busy",
        "incarnation",
        "unregistered",
    ),
)
ORDER_KIND = Label("kind", get_args(OrderKind))
ORDER_OUTCOME = Label("outcome", ("done", "refused", "expired"))
FRAME_REASON = Label("reason", ("malformed", "empty", "oversize", "unexpected"))


def _counter(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_leader_{name}", Kind.COUNTER, Part.LEADER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_leader_{name}", Kind.GAUGE, Part.LEADER, meaning, labels)


ELECTION = (
    _gauge("is_leader", "1 while this process holds the election key, else 0."),
    _gauge("epoch", "Create-revision of the election key as last seen; 0 before the first."),
    _gauge("etcd_healthy", "1 while the last call to etcd was answered in time, else 0."),
)

INDEX = (
    _gauge("workers", "Workers by state; partial ones still owe their snapshot.", WORKER_STATE),
    _counter("registrations_ignored_total", "Times a registration was ignored since max_workers others came first."),
    _gauge("index_keys", "Distinct keys in the ownership index."),
    _gauge("index_copies", "Copies in the ownership index (a key counts once per worker)."),
    _counter("deltas_applied_total", "Ownership changes applied."),
    _counter("delta_gaps_total", "Jumps found in a worker's sequence of changes."),
    _counter("snapshots_total", "Whole snapshots taken in from workers."),
    _counter("resyncs_total", "Snapshots asked for after a gap or a drift."),
    _counter("drifted_buckets_total", "Buckets of a worker's keys in which its digests differed from the index."),
    _counter("repaired_buckets_total", "Buckets that were sent again after a drift, and replaced."),
    _gauge("snapshots_waiting", "Workers that wait for their turn to send a snapshot."),
)

PEERS = (
    _counter("located_keys_total", "Keys that workers asked for the holders of."),
    _counter("orders_total", "Orders to workers that are over, by what became of them.", ORDER_KIND, ORDER_OUTCOME),
    _gauge("orders_open", "Orders to workers that are not over."),
    _gauge("draining_workers", "Workers that are being drained."),
)

FACES = (
    _counter("http_requests_total", "HTTP requests answered; code is its class.", ROUTE, CODE),
    _counter("match_keys_total", "Keys that match requests asked for."),
    _counter("where_lookups_total", "Keys that where requests asked for."),
    _counter("links_refused_total", "Connections of workers and strangers that got no link.", LINK_REASON),
    _counter("frames_refused_total", "Frames from workers refused.", FRAME_REASON),
)

PROCESS = (
    _gauge("uptime_seconds", "Seconds since this leader process started."),
    _gauge("build_info", "Always 1; the labels say what runs.", Label("version"), Label("python")),
    _counter("metric_updates_refused_total", "Updates of undeclared metrics or labels, dropped."),
)

METRICS: tuple[Metric, ...] = ELECTION + INDEX + PEERS + FACES + PROCESS

EQUALITIES: tuple[Equality, ...] = ()
