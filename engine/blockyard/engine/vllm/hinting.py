"""Hints of vLLM's requests: where they stand in a request, and what becomes of them.

Owns the count and the log line of what is wrong, and which requests store nothing. What else a request says is the
worker's to know. vLLM's `session_id` is the session of a request that names no other. Its `priority` orders
vLLM's own queue and has no scale, and its `cache_salt` is a secret that is in the keys already: neither is a hint.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from blockyard.engine.hints import WHOLE, Refusal, RequestHints, parse
from blockyard.engine.scheduler_client import SchedulerClient

if TYPE_CHECKING:
    from vllm.v1.request import Request

LOG_SECONDS = 10.0
"""Between two log lines: a client may send wrong hints with each of its requests."""

log = logging.getLogger(__name__)


class Hinting:
    """Hints of one engine's requests."""

    def __init__(self, client: SchedulerClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._no_store: set[str] = set()
        self._log_next = 0.0

    def begins(self, request: "Request") -> None:
        """Take in what a new request says. Parameters that are no mapping are taken away: vLLM would fail on them."""
        hints, refused = _read(request)
        for refusal in refused:
            self._client.count("blockyard_engine_hints_refused_total", refusal.field, 1)
        if refused and self._clock() >= self._log_next:
            self._log_next = self._clock() + LOG_SECONDS
            log.warning("blockyard: hint left out: %s (request %s)", refused[0].line, request.request_id)
        if hints.no_store:
            self._no_store.add(request.request_id)
        told = hints.message(request.request_id)
        if told is not None:
            self._client.hint(told)

    def may_store(self, request: str) -> bool:
        """Whether chunks of this request are offered for storing."""
        return request not in self._no_store

    def ends(self, request: str) -> None:
        """The request is over."""
        self._no_store.discard(request)
        self._client.unhint(request)


def _read(request: "Request") -> tuple[RequestHints, list[Refusal]]:
    params = request.kv_transfer_params
    if params is not None and not isinstance(params, dict):
        request.kv_transfer_params = None
        return RequestHints(), [Refusal(WHOLE, f"kv_transfer_params is a {type(params).__name__}, no mapping")]
    hints, refused = parse(params.get(WHOLE) if params else None)
    if not hints.session:
        hints = replace(hints, session=_session_of(request))
    return hints, refused


def _session_of(request: "Request") -> str:
    """vLLM's own session id, if it may be one of ours."""
    known, _ = parse({"session": getattr(request, "session_id", None)})
    return known.session
