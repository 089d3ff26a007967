"""The worker's declarations of its connections with other workers. Plain data."""

from __future__ import annotations

from blockyard.common.metrics.spec import Kind, Label, Metric, Part

REFUSED_REASON = Label(
    "reason",
    ("tls", "timeout", "gone", "hello", "identity", "version", "cluster", "uid", "life", "busy", "crowded"),
)
FAILED_REASON = Label("reason", ("connect", "tls", "identity", "timeout", "refused", "busy", "malformed"))
SIDE = Label("side", ("reading", "serving"))


def _counter(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_worker_{name}", Kind.COUNTER, Part.WORKER, meaning, labels)


METRICS = (
    Metric(
        "blockyard_worker_peer_connections",
        Kind.GAUGE,
        Part.WORKER,
        "Connections with other workers, by what this one does there.",
        (SIDE,),
    ),
    _counter("peer_links_refused_total", "Connections of other workers that were not let in.", REFUSED_REASON),
    _counter("peer_links_failed_total", "Connections to other workers that came to nothing.", FAILED_REASON),
    _counter("peer_sent_bytes_total", "Bytes of chunks sent to other workers."),
    _counter("peer_sends_cut_total", "Connections cut because the other side did not take what it had asked for."),
)
