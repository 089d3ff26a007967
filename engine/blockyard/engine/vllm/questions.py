"""What the scheduler asks the worker: one question per request, its answer, and the end of both.

Owns when a question is asked anew, how long its answer may take, and that every pin is given back. Must never block the
scheduler thread for longer than `acquire_wait`, never raise because of the worker, and never know what is loaded.
"""

import time
from collections.abc import Callable

from vllm.v1.kv_offload.base import OffloadKey

from blockyard.common.messages.states import KeyState
from blockyard.engine.detached import Detached
from blockyard.engine.scheduler_client import SchedulerClient
from blockyard.engine.vllm.lookups import Asked, RequestState, Stretch, all_missed, keys_of
from blockyard.engine.vllm.settings import EngineSettings

PIN_MARGIN = 0.5
"""Share of the pins' lifetime after which an unused answer is asked anew."""

_READING_SHARE = 0.8
"""Share of the time that is left for which the worker may read from disk before it answers."""

UNANSWERED = "blockyard_engine_unanswered_tokens_total"


class Questions:
    """Asks for one engine."""

    def __init__(
        self, client: SchedulerClient, settings: EngineSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock

    def ready(self, request: str, state: RequestState, computed: int) -> bool:
        """Have an answer for the request's chunks beyond `computed` tokens, asking the worker if need be.

        False: the answer is still under way; ask again at the next step. After `acquire_deadline` the answer is a miss.
        """
        wanted = state.wanted(computed)
        keys, now = keys_of(wanted), self._clock()
        if state.answered is not None and state.answered.covers(keys, now):
            return True
        self.drop_answer(state)
        if not keys or state.hopeless(wanted):
            state.answered = all_missed(wanted, KeyState.DISABLED, now + self._settings.acquire_deadline)
            return True
        if state.asked is None or state.asked.keys != keys:
            self._ask(request, state, wanted, now)
        return self._collect(state, wanted)

    def release(self, state: RequestState, surplus: list[OffloadKey]) -> None:
        """Give back the pins of some hits of the standing answer."""
        answered = state.answered
        if surplus and answered is not None and answered.grant is not None:
            blob = b"".join(state.key_of(chain, key) for chain, _, key in state.placed(tuple(surplus)))
            self._client.release(answered.grant, blob)

    def drop_answer(self, state: RequestState) -> None:
        """The standing answer is of no use any more."""
        answered, state.answered = state.answered, None
        if answered is not None and answered.grant is not None:
            self._client.release(answered.grant)

    def let_go(self, request: str, state: RequestState) -> None:
        """Nothing stays pinned, or is waited for, for this request."""
        if state.asked is not None:
            self._client.abandon(state.asked.seq)
        if state.answered is not None or state.asked is not None or state.loading:
            self._client.finish(request)

    def _ask(self, request: str, state: RequestState, wanted: tuple[Stretch, ...], now: float) -> None:
        since = now
        if state.asked is not None:
            since = state.asked.since
            self._client.abandon(state.asked.seq)
        wait = _READING_SHARE * max(0.0, since + self._settings.acquire_deadline - now)
        seq = self._client.acquire(request, [state.run_of(stretch) for stretch in wanted], wait)
        state.asked = Asked(seq, keys_of(wanted), since) if seq is not None else None

    def _collect(self, state: RequestState, wanted: tuple[Stretch, ...]) -> bool:
        asked = state.asked
        if asked is None:
            return self._answer_miss(state, wanted, KeyState.DISABLED)
        try:
            grant = self._client.grant(asked.seq, self._settings.acquire_wait)
        except Detached:
            return self._answer_miss(state, wanted, KeyState.DISABLED)
        now = self._clock()
        if grant is not None:
            state.take_answer(grant, now, self._client.pin_ttl * PIN_MARGIN)
            return True
        if now - asked.since < self._settings.acquire_deadline:
            return False
        self._client.abandon(asked.seq)
        return self._answer_miss(state, wanted, KeyState.DEADLINE)

    def _answer_miss(self, state: RequestState, wanted: tuple[Stretch, ...], reason: KeyState) -> bool:
        state.asked = None
        tokens = max(len(stretch.keys) * stretch.chain.group.chunk_tokens for stretch in wanted)
        self._client.count(UNANSWERED, reason.label, tokens)
        state.answered = all_missed(wanted, reason, self._clock() + self._settings.acquire_deadline)
        return True
