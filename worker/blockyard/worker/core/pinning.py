"""What requests may load: looks keys up, pins the hits under a grant, and lets go of them again.

Owns the pins of chunks and the grants behind them. Must never know how sessions come and go.
"""

from collections.abc import Callable

from blockyard.common.identity import Key, split_keys
from blockyard.common.messages.attach import Acquire, Finish, Grant, Release
from blockyard.common.messages.states import KeyState
from blockyard.common.metrics.counters import Adder, Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction, Send
from blockyard.worker.core.lookups import MISSES, Lookup
from blockyard.worker.core.pins import GrantBook, PinGrant
from blockyard.worker.core.sessions import Session
from blockyard.worker.core.settings import CoreSettings


class Pinning:
    """Makes and ends grants. Each method is one step of the machine."""

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        holdings: Holdings,
        grants: GrantBook,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._requests = counters.adder("blockyard_worker_acquire_requests_total")
        self._asked = counters.adder("blockyard_worker_acquire_keys_total")
        self._tokens_asked = counters.adder("blockyard_worker_acquire_tokens_total")
        self._answered = _answer_counters(counters)
        self._holdings = holdings
        self._grants = grants
        self._emit = emit

    def acquire(self, session: Session, message: Acquire, now: float) -> None:
        """Pin what is ready of these runs, and say of every other key why it is not."""
        engine = session.engine
        lookup = Lookup(self._holdings, engine.id, self._settings.max_pins_per_engine - engine.pins)
        states = b""
        for run in message.runs:
            size_class = engine.world.classes.get(run.group)
            answer, hits = lookup.run(split_keys(run.keys), size_class, run.prefix)
            states += answer
            self._holdings.touch(hits)
            self._count(answer, 0 if size_class is None else size_class.tokens_per_chunk)
        self._requests(1)
        number = self._pin(session, message.request, lookup.found, now) if lookup.found else 0
        self._emit(Send(session.id, Grant(message.seq, number, states)))

    def release(self, session: Session, message: Release) -> None:
        """Let go of some keys of a grant, or of all. A grant that has ended meanwhile is no fault."""
        grant = self._grants.grants.get(message.grant)
        if grant is not None and grant.engine is session.engine:
            self._unpin(grant, split_keys(message.keys) or list(grant.chunks))

    def finish(self, session: Session, message: Finish) -> None:
        """Let go of all that a request has pinned."""
        for grant in list(session.engine.requests.get(message.request, ())):
            self._unpin(grant, list(grant.chunks))

    def scheduler_left(self, session: Session) -> None:
        """A scheduler is gone, or has lost track: its requests will load nothing."""
        for grants in list(session.engine.requests.values()):
            for grant in list(grants):
                if grant.session == session.id:
                    self._unpin(grant, list(grant.chunks))

    def expire(self, now: float) -> None:
        """End the grants whose deadline has passed. Copies under way are not touched by that."""
        for grant in self._grants.expired(now):
            self._unpin(grant, list(grant.chunks))

    def _pin(self, session: Session, request: str, chunks: dict[Key, Chunk], now: float) -> int:
        engine = session.engine
        for chunk in chunks.values():
            chunk.pins += 1
        engine.pins += len(chunks)
        grant = self._grants.open(engine, session.id, request, now + self._settings.pin_ttl, chunks)
        engine.requests.setdefault(request, []).append(grant)
        return grant.number

    def _unpin(self, grant: PinGrant, keys: list[Key]) -> None:
        """Take these keys out of a grant; an empty grant ends."""
        engine = grant.engine
        for key in keys:
            chunk = grant.chunks.pop(key, None)
            if chunk is not None:
                engine.pins -= 1
                chunk.pins -= 1
                if chunk.state is ChunkState.DOOMED:
                    self._holdings.use_ended(chunk)
        if not grant.chunks:
            del self._grants.grants[grant.number]
            engine.requests[grant.request].remove(grant)
            if not engine.requests[grant.request]:
                del engine.requests[grant.request]

    def _count(self, states: bytes, tokens: int) -> None:
        self._asked(len(states))
        self._tokens_asked(len(states) * tokens)
        for state in set(states):
            count = states.count(state)
            chunks_add, tokens_add = self._answered[state]
            chunks_add(count)
            tokens_add(count * tokens)


def _answer_counters(counters: Counters) -> dict[int, tuple[Adder, Adder]]:
    """By KeyState that a lookup can give: what counts the chunks, and what counts their tokens."""
    prefix = "blockyard_worker_"
    adders = {
        int(KeyState.HIT): (
            counters.adder(prefix + "hit_chunks_total", tier="host"),
            counters.adder(prefix + "hit_tokens_total", tier="host"),
        )
    }
    for state in MISSES:
        chunks = counters.adder(prefix + "miss_chunks_total", reason=state.label)
        adders[state] = (chunks, counters.adder(prefix + "miss_tokens_total", reason=state.label))
    return adders
