"""The scheduler-side half: vLLM's OffloadingManager, answered by the node's worker.

Owns the translation between vLLM's per-key questions and one message per request. Must never block the scheduler
thread for longer than `acquire_wait`, never raise because of the worker, and never know where a chunk lies.
"""

import time
from collections.abc import Callable, Collection

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from blockyard.common.identity import Fingerprint, Key, chunk_key
from blockyard.common.messages.attach import MAX_KEYS, Run
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.detached import Detached
from blockyard.engine.scheduler_client import Grant, SchedulerClient
from blockyard.engine.vllm.accounting import Accounting
from blockyard.engine.vllm.lookups import Answered, Asked, Load, RequestState, all_missed
from blockyard.engine.vllm.settings import EngineSettings
from blockyard.engine.vllm.specs import ChunkSpec, FailedLoad

PIN_MARGIN = 0.5
"""Share of the pins' lifetime after which an unused answer is asked anew."""


class BlockyardManager(OffloadingManager):
    """Manager of one engine. `client` is None when the engine serves detached for good."""

    def __init__(
        self,
        world: Fingerprint,
        settings: EngineSettings,
        client: SchedulerClient | None,
        chunk_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = world
        self._settings = settings
        self._client = client
        self._chunk_tokens = chunk_tokens
        self._clock = clock
        self._requests: dict[str, RequestState] = {}
        self._jobs = 0
        self._detachments: dict[str, int] = {}
        self.accounting = Accounting(self._tell)

    # What the connector calls around vLLM's own lookup.

    def follow(self, request: str, chain: list[OffloadKey]) -> None:
        """`chain` is the request's own list of chunk keys, which vLLM extends as tokens come."""
        self._requests.setdefault(request, RequestState()).chain = chain

    def ready_to_look_up(self, request: str, first_chunk: int) -> bool:
        """Have an answer for the request's chunks from `first_chunk` on, asking the worker if need be.

        False: the answer is still under way; ask again at the next step. After `acquire_deadline` the answer is a miss.
        """
        state = self._requests.setdefault(request, RequestState())
        wanted = tuple(state.chain[first_chunk : first_chunk + MAX_KEYS])
        now = self._clock()
        if state.answered is not None and state.answered.covers(wanted, now):
            return True
        self._drop_answer(state)
        if not wanted or self._client is None or wanted[0] in state.forbidden:
            state.answered = all_missed(wanted, KeyState.DISABLED, now + self._settings.acquire_deadline)
            return True
        if state.asked is None or state.asked.keys != wanted:
            self._ask(request, state, first_chunk, wanted, now)
        return self._collect(state, wanted)

    def settle(self, request: str, hit_tokens: int) -> None:
        """vLLM has chosen: without a hit, nothing stays pinned for the request."""
        state = self._requests.get(request)
        if state is None:
            return
        state.uncounted = True
        if hit_tokens == 0:
            self._drop_answer(state)

    def allocated(self, request: str, gpu_hit: int, tokens: int, hit_tokens: int) -> None:
        """The request has GPU blocks: of its `tokens`, `gpu_hit` were there and the next `hit_tokens` are loaded.

        vLLM says so once more when a load has ended; only what follows a lookup is counted.
        """
        state = self._requests.get(request)
        asked = tokens - gpu_hit
        if state is None or not state.uncounted or asked <= 0:
            return
        state.uncounted = False
        if hit_tokens:
            state.load = Load(asked, hit_tokens, gpu_hit, self._clock())
        elif not state.computed_whole:
            self.accounting.computed_all(asked)
        state.computed_whole = False

    def load_failed(self, request: str, load: FailedLoad) -> None:
        """These keys did not arrive: do not offer them to this request again, or it would load for ever."""
        self._tell("blockyard_engine_load_failures_total", load.reason, 1)
        if load.reason == CopyState.CORRUPT.label:
            self._tell("blockyard_engine_verify_mismatches_total", "", 1)
        state = self._requests.get(request)
        if state is None:
            return
        state.forbidden.update(load.keys)
        if state.load is not None:
            first = next((i for i, key in enumerate(state.chain) if key in load.keys), 0)
            state.load.arrived_before(first * self._chunk_tokens)

    def _ask(
        self, request: str, state: RequestState, first_chunk: int, wanted: tuple[OffloadKey, ...], now: float
    ) -> None:
        assert self._client is not None
        run = self._run(state, first_chunk, wanted)
        since = now
        if state.asked is not None:
            since = state.asked.since
            self._client.abandon(state.asked.seq)
        seq = self._client.acquire(request, [run])
        state.asked = Asked(seq, wanted, since) if seq is not None else None

    def _collect(self, state: RequestState, wanted: tuple[OffloadKey, ...]) -> bool:
        client, asked = self._client, state.asked
        assert client is not None
        if asked is None:
            return self._answer_miss(state, wanted, KeyState.DISABLED)
        try:
            grant = client.grant(asked.seq, self._settings.acquire_wait)
        except Detached:
            return self._answer_miss(state, wanted, KeyState.DISABLED)
        now = self._clock()
        if grant is None:
            if now - asked.since < self._settings.acquire_deadline:
                return False
            client.abandon(asked.seq)
            return self._answer_miss(state, wanted, KeyState.DEADLINE)
        answered = state.take_answer(grant, now, client.pin_ttl * PIN_MARGIN)
        for key in state.forbidden:
            if key in answered.states:
                answered.states[key] = KeyState.CORRUPT
        return True

    def _answer_miss(self, state: RequestState, wanted: tuple[OffloadKey, ...], reason: KeyState) -> bool:
        state.asked = None
        self._tell("blockyard_engine_unanswered_tokens_total", reason.label, len(wanted) * self._chunk_tokens)
        state.answered = all_missed(wanted, reason, self._clock() + self._settings.acquire_deadline)
        return True

    def _drop_answer(self, state: RequestState) -> None:
        answered, state.answered = state.answered, None
        if answered is not None and answered.grant is not None and self._client is not None:
            self._client.release(answered.grant)

    def _let_go(self, request: str, state: RequestState) -> None:
        """Nothing stays pinned, or is waited for, for this request."""
        if self._client is None:
            return
        if state.asked is not None:
            self._client.abandon(state.asked.seq)
        if state.answered is not None or state.asked is not None or state.loading:
            self._client.finish(request)

    # vLLM's interface.

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """State of one key, out of the answer that is already here."""
        state = self._requests.get(req_context.req_id)
        if state is None or state.answered is None:
            return LookupResult.MISS
        hit = state.answered.states.get(key) is KeyState.HIT
        return LookupResult.HIT if hit else LookupResult.MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Every hit of the host tier comes from this node's memory."""
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> ChunkSpec:
        """Name the pinned chunks that the ranks are to load; what was pinned beyond them is released."""
        state = self._requests.setdefault(req_context.req_id, RequestState())
        answered, state.answered = state.answered, None
        grant = answered.grant if answered is not None else None
        ordered = tuple(keys)
        if answered is not None and grant is not None:
            self._release_surplus(state, answered, grant, set(ordered))
            state.loading.append(grant)
        number = grant.number if grant is not None else 0
        return ChunkSpec(self._next_job(), number, tuple(self._chunk_key(state, k) for k in ordered), ordered)

    def _release_surplus(self, state: RequestState, answered: Answered, grant: Grant, chosen: set[OffloadKey]) -> None:
        surplus = [k for k, s in answered.states.items() if s is KeyState.HIT and k not in chosen]
        if surplus and self._client is not None:
            self._client.release(grant, b"".join(self._chunk_key(state, key) for key in surplus))

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """All ranks are done with a load; a request has one at a time."""
        state = self._requests.get(req_context.req_id)
        if state is None or self._client is None:
            return
        if state.load is not None:
            load, state.load = state.load, None
            self.accounting.load_ended(load.asked, load.hit, load.arrived, self._clock() - load.began)
            state.computed_whole = load.in_vain
        for grant in state.loading:
            self._client.release(grant)
        state.loading.clear()

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput:
        """Offer computed chunks: the worker reserves slots and knows which it has already; nothing is waited for."""
        ordered = tuple(keys)[:MAX_KEYS]
        state = self._requests.setdefault(req_context.req_id, RequestState())
        job = self._next_job()
        first = self._chunk_index(state, req_context, ordered[0])
        if self._client is None or not self._client.fill(job, req_context.req_id, [self._run(state, first, ordered)]):
            return PrepareStoreOutput([], ChunkSpec(job, 0, (), ()), [])
        spec = ChunkSpec(job, 0, tuple(self._chunk_key(state, key) for key in ordered), ordered)
        return PrepareStoreOutput(list(ordered), spec, [])

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Start a request's books."""
        self._requests[req_context.req_id] = RequestState()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request is over; copies that still run are the ranks' affair."""
        state = self._requests.pop(req_context.req_id, None)
        if state is not None:
            self._let_go(req_context.req_id, state)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Once per step: what was gathered goes out."""
        if self._client is None:
            return
        for reason, times in self._client.detachments.items():
            new = times - self._detachments.get(reason, 0)
            if new:
                self._client.count("blockyard_engine_detaches_total", reason, new)
                self._detachments[reason] = times
        self._client.flush()

    def reset_cache(self) -> None:
        """The operator says that stored bytes are no longer what the engine would compute."""
        for request, state in self._requests.items():
            self._let_go(request, state)
            self._requests[request] = RequestState(chain=state.chain)
        if self._client is not None:
            self._client.forget("cache reset")

    def shutdown(self) -> None:
        """End the session; bounded."""
        if self._client is not None:
            self._client.close(timeout=1.0)

    def _tell(self, name: str, label: str, amount: float) -> None:
        if self._client is not None:
            self._client.count(name, label, amount)

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs

    def _chunk_key(self, state: RequestState, key: OffloadKey) -> Key:
        known = state.chunk_keys.get(key)
        if known is None:
            known = chunk_key(self._world, get_offload_block_hash(key), get_offload_group_idx(key))
            state.chunk_keys[key] = known
        return known

    def _run(self, state: RequestState, first_chunk: int, keys: tuple[OffloadKey, ...]) -> Run:
        blob = b"".join(self._chunk_key(state, key) for key in keys)
        parent = self._chunk_key(state, state.chain[first_chunk - 1]) if first_chunk else b""
        return Run(get_offload_group_idx(keys[0]), first_chunk, parent, blob, True)

    def _chunk_index(self, state: RequestState, req_context: ReqContext, key: OffloadKey) -> int:
        """Index of a chunk in its request, by the end position that vLLM records for each key."""
        position = req_context.get_offload_key_position(key)
        index = 0 if position is None else position // self._chunk_tokens - 1
        return index if 0 <= index < len(state.chain) and state.chain[index] == key else 0
