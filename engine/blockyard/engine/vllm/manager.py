"""The scheduler-side half: vLLM's OffloadingManager, answered by the node's worker.

Owns the books of requests, and the translation between vLLM's per-key questions and one message per request. Must never
block the scheduler thread, never raise because of the worker, and never know where a chunk lies.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)

from blockyard.common.messages.attach import MAX_KEYS
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.scheduler_client import MAX_RUNS, SchedulerClient
from blockyard.engine.vllm.accounting import Accounting
from blockyard.engine.vllm.adapters import Adapter, AdapterBook
from blockyard.engine.vllm.chains import Chain, GroupState
from blockyard.engine.vllm.epochs import Change, Epochs
from blockyard.engine.vllm.groups import CacheGroup, resumes_at_the_failure
from blockyard.engine.vllm.hinting import Hinting
from blockyard.engine.vllm.lookups import Load, RequestState, keys_of, stretches_of
from blockyard.engine.vllm.membership import Membership
from blockyard.engine.vllm.metrics.tally import Tally
from blockyard.engine.vllm.questions import Questions
from blockyard.engine.vllm.settings import EngineSettings
from blockyard.engine.vllm.specs import ChunkSpec, FailedLoad

if TYPE_CHECKING:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource


class BlockyardManager(OffloadingManager):
    """Manager of one engine with these cache groups. `private`: no other engine is of its world."""

    def __init__(
        self,
        epochs: Epochs,
        groups: tuple[CacheGroup, ...],
        settings: EngineSettings,
        client: SchedulerClient,
        adapters: AdapterBook,
        tally: Tally,
        private: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs = epochs
        self._private = private
        self._groups = groups
        self.resumes = resumes_at_the_failure(groups)
        """Whether a request goes on from what did load; else it begins anew, and offers all that it computes."""
        self.tally = tally
        self._client = client
        self._membership = Membership(epochs, groups, adapters)
        self._questions = Questions(client, settings, clock)
        self._clock = clock
        self._requests: dict[str, RequestState] = {}
        self._jobs = 0
        self._detachments: dict[str, int] = {}
        self.accounting = Accounting(client.count)
        self.hinting = Hinting(client, clock)

    # What the connector calls around vLLM's own lookup.

    def follow(self, request: str, states: Sequence[GroupState], adapter: Adapter | None) -> None:
        """`states` are vLLM's own of the request, one for each group."""
        chains = tuple(Chain(group, state) for group, state in zip(self._groups, states, strict=True))
        self._requests[request] = RequestState(chains=chains, adapter=adapter)

    def begins(self, request: str) -> None:
        """vLLM is about to look for what this request may begin with: it has no GPU blocks, or has them no more."""
        state = self._requests.get(request)
        if state is not None:
            self._membership.begin(state)

    def has_blocks(self, request: str, blocks: Sequence[Sequence[int]], gpu_hit: int) -> None:
        """All GPU blocks of a request, by group; in those of its first `gpu_hit` tokens is what was computed before."""
        state = self._requests.get(request)
        if state is not None:
            self._membership.give_blocks(state, blocks, gpu_hit)

    def grows(self, request: str, blocks: Sequence[Sequence[int]]) -> None:
        """A running request gets these further GPU blocks."""
        self._membership.give_more_blocks(self._requests.get(request), blocks)

    def hear(self, changes: Mapping[int, Change]) -> bool:
        """Ranks tell that their weights have changed; whether that is news. What is under way of it, they refuse."""
        if not self.epochs.hear(changes):
            return False
        self._drop_if_private()
        for request, state in self._requests.items():
            self._questions.let_go(request, state)
            state.forget_answers()
            self._membership.renew(state)
        return True

    def ready_to_look_up(self, request: str, computed: int) -> bool:
        """Whether the worker has said what of the chunks beyond `computed` tokens it has; else ask again."""
        return self._questions.ready(request, self._requests[request], computed)

    def first_to_load(self, request: str, computed: int) -> OffloadKey | None:
        """The chunk that a load beyond `computed` tokens begins with; None where only windows are."""
        chains = self._requests[request].chains
        chain = next((chain for chain in chains if not chain.group.window), None)
        if chain is None:
            return None
        first = computed // chain.group.chunk_tokens
        return chain.keys[first] if first < len(chain.keys) else None

    def settle(self, request: str, computed: int, hit_tokens: int) -> None:
        """vLLM has chosen to load `hit_tokens` beyond those computed: nothing else stays pinned for the request."""
        state = self._requests[request]
        state.uncounted = True
        if hit_tokens == 0:
            self._questions.drop_answer(state)
        elif state.answered is not None:
            surplus = state.beyond_need(computed, hit_tokens)
            self._questions.release(state, surplus)
            state.answered.forgo(surplus)

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
        else:
            self.accounting.computed_all(asked, state.hit_in_vain, state.failure)
            state.hit_in_vain, state.failure = 0, ""

    def load_failed(self, request: str, load: FailedLoad) -> None:
        """These keys did not arrive: do not offer them to this request again, or it would load for ever."""
        self._client.count("blockyard_engine_load_failures_total", load.reason, 1)
        if load.reason == CopyState.CORRUPT.label:
            self._client.count("blockyard_engine_verify_mismatches_total", "", 1)
        state = self._requests.get(request)
        if state is None:
            return
        state.forbidden.update(load.keys)
        state.failure = state.failure or load.reason
        if state.load is None:
            return
        if self.resumes:
            chain = state.chains[0]
            first = min((i for _, i, _ in state.placed(tuple(load.keys))), default=0)
            state.load.arrived_before(first * chain.group.chunk_tokens)
        else:
            state.load.arrived_not()

    def standing(self, loads: int, stores: int) -> Tally:
        """What was counted, with how things stand now; the connector knows how many transfers are under way."""
        self.tally.stands(self._client.detached_reason, loads, stores)
        return self.tally

    # vLLM's interface.

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """State of one key, out of the answer that is already here."""
        state = self._requests.get(req_context.req_id)
        if state is None or state.answered is None:
            return LookupResult.MISS
        hit = state.answered.states.get(key) is KeyState.HIT
        return LookupResult.HIT if hit else LookupResult.MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> "CacheHitSource":
        """Every hit of the host tier comes from this node's memory. Asked by vLLM 0.32 and later."""
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> ChunkSpec:
        """Name the pinned chunks that the ranks are to load; what was pinned beyond them is released."""
        state = self._requests[req_context.req_id]
        ordered = tuple(keys)
        answered = state.answered
        number = 0
        if answered is not None and answered.grant is not None:
            chosen = set(ordered)
            surplus = [k for k, s in answered.states.items() if s is KeyState.HIT and k not in chosen]
            self._questions.release(state, surplus)
            state.loading.append(answered.grant)
            number = answered.grant.number
        state.answered = None
        names = tuple(state.key_of(chain, key) for chain, _, key in state.placed(ordered))
        return ChunkSpec(self._next_job(), number, names, ordered, heard=self.epochs.heard)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """All ranks are done with a load; a request has one at a time."""
        state = self._requests.get(req_context.req_id)
        if state is None:
            return
        load, state.load = state.load, None
        if load is not None and load.in_vain:
            state.hit_in_vain = max(state.hit_in_vain, load.hit)
        elif load is not None:
            hit = max(load.hit, state.hit_in_vain)
            self.accounting.load_ended(load.asked, hit, load.arrived, self._clock() - load.began, state.failure)
            state.hit_in_vain, state.failure = 0, ""
        for grant in state.loading:
            self._client.release(grant)
        state.loading.clear()

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput:
        """Offer computed chunks: the worker reserves slots and knows which it has already; nothing is waited for."""
        state = self._requests[req_context.req_id]
        job = self._next_job()
        if not self.hinting.may_store(req_context.req_id) or not self._membership.includes(state):
            return PrepareStoreOutput([], ChunkSpec(job, 0, (), ()), [])
        placed = []
        blocks = []
        for chain, index, key in state.placed(tuple(keys)[:MAX_KEYS]):
            found = chain.blocks_to_store(index)
            if found is not None:
                placed.append((chain, index, key))
                blocks.append(found)
        stretches = stretches_of(placed)[:MAX_RUNS]
        if not stretches or not self._client.fill(job, req_context.req_id, [state.run_of(s) for s in stretches]):
            return PrepareStoreOutput([], ChunkSpec(job, 0, (), ()), [])
        ordered = keys_of(stretches)
        names = tuple(state.key_of(s.chain, key) for s in stretches for key in s.keys)
        spec = ChunkSpec(job, 0, names, ordered, tuple(blocks[: len(ordered)]), self.epochs.heard)
        return PrepareStoreOutput(list(ordered), spec, [])

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """vLLM's default policy; the request's books begin with `follow`."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request is over; copies that still run are the ranks' affair."""
        state = self._requests.pop(req_context.req_id, None)
        if state is not None:
            self._questions.let_go(req_context.req_id, state)
        self.hinting.ends(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Once per step: what was gathered goes out."""
        for reason, times in self._client.detachments.items():
            new = times - self._detachments.get(reason, 0)
            if new:
                self._client.count("blockyard_engine_detaches_total", reason, new)
                self._detachments[reason] = times
        self._client.flush()

    def reset_cache(self) -> None:
        """Begin a new epoch: what is stored, or in GPU blocks, is no longer what the engine would compute."""
        self.epochs.reset()
        self._drop_if_private()
        for request, state in self._requests.items():
            self._questions.let_go(request, state)
            self._requests[request] = RequestState(chains=state.chains, adapter=state.adapter, since=state.since)

    def shutdown(self) -> None:
        """End the session; bounded."""
        self._client.close(timeout=1.0)

    def _drop_if_private(self) -> None:
        """What lies at the worker is of no use to this engine any more, and may be of use to others of its world."""
        if self._private:
            self._client.forget("the weights of this engine's own world have changed")

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs
