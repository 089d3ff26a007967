"""The worker's declarations of chunks on their way between workers. Plain data."""

from __future__ import annotations

from typing import get_args

from blockyard.common.messages.cluster import OrderKind
from blockyard.common.messages.peer import FetchState
from blockyard.common.metrics.spec import Equality, Kind, Label, Metric, Part

_ANSWERS = tuple(state.label for state in FetchState if state is not FetchState.OK)
FETCH_FAULT = Label("reason", (*_ANSWERS, "corrupt", "gone", "cancelled"))
TRY_FAULT = Label("reason", (*_ANSWERS, "corrupt", "gone"))
BREAKER_REASON = Label("reason", ("corrupt", "gone", "deadline"))
SERVED_STATE = Label("state", tuple(state.label for state in FetchState))


def _counter(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_worker_{name}", Kind.COUNTER, Part.WORKER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_worker_{name}", Kind.GAUGE, Part.WORKER, meaning, labels)


ORDER_KIND = Label("kind", get_args(OrderKind))
ORDER_OUTCOME = Label("outcome", ("done", "refused", "expired"))

METRICS = (
    _gauge("peers", "Other workers that serve peers, as the leader last said."),
    _gauge("peers_left_alone", "Those of them that are not asked for anything at the moment."),
    _counter("peer_questions_total", "Questions to the leader who holds some keys."),
    _counter("peer_questions_unanswered_total", "Questions that had no answer in time."),
    _counter("peer_fetches_started_total", "Chunks whose fetch from a peer began."),
    _counter("peer_fetches_completed_total", "Chunks fetched from a peer and verified."),
    _counter("peer_fetches_failed_total", "Fetches that came to nothing, by what their last try met.", FETCH_FAULT),
    _gauge("peer_fetches_in_flight", "Fetches started that have not ended yet."),
    _counter("peer_tries_failed_total", "Holders that did not give a chunk.", TRY_FAULT),
    _counter("peer_read_bytes_total", "Bytes fetched from peers."),
    _counter("peer_breaker_opened_total", "Times a peer was left alone.", BREAKER_REASON),
    _counter("peer_served_chunks_total", "Chunks that peers asked for, by what they were told.", SERVED_STATE),
    _counter("orders_total", "Orders of the leader that have come to an end.", ORDER_KIND, ORDER_OUTCOME),
    _gauge("peer_serving_chunks", "Chunks that peers wait for or are being sent."),
)

EQUALITIES = (
    Equality(
        "peer-fetches-end-once",
        "blockyard_worker_peer_fetches_started_total",
        (
            "blockyard_worker_peer_fetches_completed_total",
            "blockyard_worker_peer_fetches_failed_total",
            "blockyard_worker_peer_fetches_in_flight",
        ),
        "Every fetch started ends in exactly one way or is still in flight.",
    ),
)
