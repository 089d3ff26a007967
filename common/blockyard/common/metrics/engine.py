"""The engines' declarations: counted inside vLLM, shown by its own `/metrics`, and reported to the worker, which shows
them under the engine's id.

Plain data: a metric stands here only if something moves it. At most one label each, which is what the attach
channel carries; what needs no worker to be of use, or tells of being without one, is shown by vLLM alone.
"""

from __future__ import annotations

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.metrics.spec import Equality, Kind, Label, Metric, Part
from blockyard.common.metrics.worker import LEG

LOAD_FAIL_REASON = Label("reason", tuple(state.label for state in CopyState if state is not CopyState.OK))
UNANSWERED_REASON = Label("reason", (KeyState.DEADLINE.label, KeyState.DISABLED.label))
OUTCOME = Label("outcome", tuple(state.label for state in CopyState))
DETACH_REASON = Label("reason", ("no-worker", "version", "fingerprint", "size", "layout", "timeout", "refused"))

# A hint by its name; then what is no hint, and what should have held them.
HINT = Label("field", ("priority", "ttl", "session", "no_store", "release", "pin", "unknown", "blockyard"))

# From a tenth of the scheduler's wait for an answer (about 1 ms) to well past the breaker.
ACQUIRE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0)


def _counter(name: str, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_engine_{name}", Kind.COUNTER, Part.ENGINE, meaning, labels)


def _own(name: str, kind: Kind, meaning: str, *labels: Label) -> Metric:
    return Metric(f"blockyard_engine_{name}", kind, Part.ENGINE, meaning, labels, at_worker=False)


METRICS: tuple[Metric, ...] = (
    _counter("requested_tokens_total", "Prompt tokens, not in the GPU cache, of requests that are settled."),
    _counter("hit_tokens_total", "Of these, tokens that the worker had ready."),
    _counter(
        "unanswered_tokens_total",
        "Tokens taken for missing without the worker's answer: none in time, or no worker.",
        UNANSWERED_REASON,
    ),
    _counter("loaded_tokens_total", "Of these, tokens whose load ended well and that were not computed."),
    _counter("computed_tokens_total", "Of these, tokens that the engine computed."),
    _counter(
        "recomputed_tokens_total",
        "Tokens that the worker had ready and that were computed all the same, since their load failed.",
        LOAD_FAIL_REASON,
    ),
    _counter("ttft_saved_seconds_total", "Estimated time to first token saved: compute time less load time."),
    _counter("load_failures_total", "Loads that ended in recomputing.", LOAD_FAIL_REASON),
    _counter("verify_mismatches_total", "Loaded areas whose bytes did not match the slot table."),
    _counter(
        "detaches_total",
        "Times the engine went on without the worker; told after re-attachment.",
        DETACH_REASON,
    ),
    _counter("hints_refused_total", "Hints of requests that were left out as wrong, by name.", HINT),
    Metric(
        "blockyard_engine_acquire_seconds",
        Kind.HISTOGRAM,
        Part.ENGINE,
        "Time from sending acquire to its answer, at the scheduler.",
        buckets=ACQUIRE_BUCKETS,
    ),
    _own("copied_bytes_total", Kind.COUNTER, "Bytes whose copy ended well, over all ranks.", LEG),
    _own("copy_seconds_total", Kind.COUNTER, "Time that ranks spent copying, ended well or not.", LEG),
    _own("loads_total", Kind.COUNTER, "A rank's parts of chunks that were to be loaded, once ended.", OUTCOME),
    _own("stores_total", Kind.COUNTER, "A rank's parts of chunks that were to be stored, once ended.", OUTCOME),
    _own("pending_copies", Kind.GAUGE, "Transfers that not all ranks have ended yet.", LEG),
    _own("attached", Kind.GAUGE, "1 while the scheduler has a session with the worker, else 0."),
    _own("detached", Kind.GAUGE, "1 for the reason why there is none, 0 for all others.", DETACH_REASON),
)

EQUALITIES: tuple[Equality, ...] = (
    Equality(
        "tokens-loaded-or-computed",
        "blockyard_engine_requested_tokens_total",
        ("blockyard_engine_loaded_tokens_total", "blockyard_engine_computed_tokens_total"),
        "Every token asked for is loaded or computed, never both, never neither.",
    ),
    Equality(
        "hit-tokens-loaded-or-recomputed",
        "blockyard_engine_hit_tokens_total",
        ("blockyard_engine_loaded_tokens_total", "blockyard_engine_recomputed_tokens_total"),
        "Every token that was there is loaded, or computed after a load that failed.",
    ),
)
