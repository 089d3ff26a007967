"""What requests may load: looks keys up, pins the hits under a grant, and lets go of them again.

Owns the pins of chunks and the grants behind them. Must never know how sessions come and go.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from blockyard.common.identity import Key, split_keys
from blockyard.common.messages.attach import Acquire, Finish, Grant, Release, Run
from blockyard.common.messages.states import KeyState
from blockyard.common.metrics.counters import Adder, Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction, Send
from blockyard.worker.core.lookups import MISSES, Lookup
from blockyard.worker.core.peers.tier import PeerTier
from blockyard.worker.core.pins import GrantBook, PinGrant
from blockyard.worker.core.searching import Searching
from blockyard.worker.core.sessions import Session
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.waiting import WaitingAcquire, WaitingAcquires


class Pinning:
    """Makes and ends grants. Each method is one step of the machine."""

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        holdings: Holdings,
        grants: GrantBook,
        searching: Searching,
        peers: PeerTier,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._requests = counters.adder("blockyard_worker_acquire_requests_total")
        self._asked = counters.adder("blockyard_worker_acquire_keys_total")
        self._tokens_asked = counters.adder("blockyard_worker_acquire_tokens_total")
        self._answered = _answer_counters(counters)
        self._fetched = {tier: _hit_counters(counters, tier) for tier in ("disk", "peer")}
        self._searching = searching
        self._peers = peers
        self.waiting = WaitingAcquires(settings.disk.max_waiting)
        self._holdings = holdings
        self._grants = grants
        self._emit = emit

    def acquire(self, session: Session, message: Acquire, now: float) -> None:
        """Pin what is ready of these runs, and say of every other key why it is not.

        If the disk or a peer has more, and the engine would wait for it, the answer comes when that was read, or later
        than the engine would wait.
        """
        self._attempt(session, message, now + message.wait_ms / 1000, now, None)

    def read_ended(self, number: int, well: bool, now: float) -> None:
        """Go on with those that waited for this read: with further ones unless it failed, or with the answer."""
        for one in self.waiting.read_ended(number, well):
            self._end_hold(one)
            self._attempt(one.session, one.message, one.deadline if one.more else now, now, one.there)

    def release(self, session: Session, message: Release) -> None:
        """Let go of some keys of a grant, or of all. A grant that has ended meanwhile is no fault."""
        grant = self._grants.grants.get(message.grant)
        if grant is not None and grant.engine is session.engine:
            self._unpin(grant, split_keys(message.keys) or list(grant.chunks))

    def finish(self, session: Session, message: Finish) -> None:
        """Let go of all that a request has pinned."""
        for one in self.waiting.of_request(session, message.request):
            self._emit(Send(session.id, Grant(one.message.seq, 0, self._give_up(one))))
        for grant in list(session.engine.requests.get(message.request, ())):
            self._unpin(grant, list(grant.chunks))

    def scheduler_left(self, session: Session) -> None:
        """A scheduler is gone, or has lost track: its requests will load nothing."""
        self.stop_waiting(session)
        for grants in list(session.engine.requests.values()):
            for grant in list(grants):
                if grant.session == session.id:
                    self._unpin(grant, list(grant.chunks))

    def stop_waiting(self, session: Session) -> None:
        """Nobody will hear the answers that this session waits for."""
        for one in self.waiting.of_session(session):
            self._give_up(one)

    def expire(self, now: float) -> None:
        """End what waits and the grants whose deadline has passed. Copies under way are not touched by that."""
        for one in self.waiting.late(now):
            self._end_hold(one)
            self._attempt(one.session, one.message, now, now, one.there)
        for grant in self._grants.expired(now):
            self._unpin(grant, list(grant.chunks))

    def _look_up(
        self, session: Session, message: Acquire, now: float, touch: bool = True
    ) -> tuple[Lookup, list[bytes]]:
        """What is ready now, which counts as used, and the states of each run."""
        engine = session.engine
        budget = self._settings.max_pins_per_engine - engine.pins
        lookup = Lookup(self._holdings, engine.id, budget, lambda key: self._peers.miss(key, now))
        states = []
        for run in message.runs:
            answer, hits = lookup.run(split_keys(run.keys), engine.world.classes.get(run.group), run.prefix)
            states.append(answer)
            if touch:
                self._holdings.touch(hits)
        return lookup, states

    def _attempt(
        self, session: Session, message: Acquire, deadline: float, now: float, there: Collection[Key] | None
    ) -> None:
        """Answer, or wait for what is being read. `there` are the keys that were hits at first; None: this is first."""
        first = there is None
        lookup, states = self._look_up(session, message, now)
        if there is None:
            there = frozenset(lookup.found) if message.wait_ms else ()
        reads = self._start_reads(session, message, now, first) if now < deadline else set()
        if reads:
            held = self._pin(session, message.request, lookup.found, now) if lookup.found else None
            self.waiting.add(WaitingAcquire(session, message, deadline, reads, held, there))
            return
        if now < deadline and self._peers.active:
            # That nobody could be asked for a key was perhaps found out just now.
            lookup, states = self._look_up(session, message, now, touch=False)
        fetched = {
            key: "peer" if chunk.from_peer else "disk"
            for key, chunk in lookup.found.items()
            if not chunk.engine and key not in there
        }
        self._answer(session, message, lookup, states, now, fetched if message.wait_ms else {})

    def _start_reads(self, session: Session, message: Acquire, now: float, first: bool) -> set[int]:
        reads: set[int] = set()
        if not self.waiting.full:
            for run in message.runs:
                size_class = session.engine.world.classes.get(run.group)
                if size_class is not None:
                    keys = split_keys(run.keys)
                    reads |= self._searching.start_run(keys, run.parent, size_class, run.prefix, now, first)
        return reads

    def _answer(
        self,
        session: Session,
        message: Acquire,
        lookup: Lookup,
        states: list[bytes],
        now: float,
        fetched: Mapping[Key, str],
    ) -> None:
        """`fetched` are the hits that were read for this, and from which tier."""
        for run, answer in zip(message.runs, states, strict=True):
            self._count(session, run, answer, fetched)
        self._requests(1)
        number = self._pin(session, message.request, lookup.found, now).number if lookup.found else 0
        self._emit(Send(session.id, Grant(message.seq, number, b"".join(states))))

    def _give_up(self, one: WaitingAcquire) -> bytes:
        """Nobody needs the answer any more; what it would have said is counted all the same."""
        self._end_hold(one)
        states = [bytes([KeyState.DEADLINE]) * len(split_keys(run.keys)) for run in one.message.runs]
        for run, answer in zip(one.message.runs, states, strict=True):
            self._count(one.session, run, answer, {})
        self._requests(1)
        return b"".join(states)

    def _end_hold(self, one: WaitingAcquire) -> None:
        if one.held is not None and self._grants.grants.get(one.held.number) is one.held:
            self._unpin(one.held, list(one.held.chunks))

    def _pin(self, session: Session, request: str, chunks: dict[Key, Chunk], now: float) -> PinGrant:
        engine = session.engine
        for chunk in chunks.values():
            chunk.pins += 1
        engine.pins += len(chunks)
        grant = self._grants.open(engine, session.id, request, now + self._settings.pin_ttl, dict(chunks))
        engine.requests.setdefault(request, []).append(grant)
        return grant

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

    def _count(self, session: Session, run: Run, states: bytes, fetched: Mapping[Key, str]) -> None:
        size_class = session.engine.world.classes.get(run.group)
        tokens = 0 if size_class is None else size_class.tokens_per_chunk
        self._asked(len(states))
        self._tokens_asked(len(states) * tokens)
        tiers = Counter(fetched[key] for key in split_keys(run.keys) if key in fetched) if fetched else {}
        for tier, chunks in tiers.items():
            self._add(self._fetched[tier], chunks, tokens)
        for state in set(states):
            count = states.count(state) - (sum(tiers.values()) if state == KeyState.HIT else 0)
            self._add(self._answered[state], count, tokens)

    @staticmethod
    def _add(adders: tuple[Adder, Adder], chunks: int, tokens: int) -> None:
        adders[0](chunks)
        adders[1](chunks * tokens)


def _answer_counters(counters: Counters) -> dict[int, tuple[Adder, Adder]]:
    """By KeyState that a lookup can give: what counts the chunks, and what counts their tokens."""
    adders = {int(KeyState.HIT): _hit_counters(counters, "host")}
    for state in MISSES:
        chunks = counters.adder("blockyard_worker_miss_chunks_total", reason=state.label)
        adders[state] = (chunks, counters.adder("blockyard_worker_miss_tokens_total", reason=state.label))
    return adders


def _hit_counters(counters: Counters, tier: str) -> tuple[Adder, Adder]:
    return (
        counters.adder("blockyard_worker_hit_chunks_total", tier=tier),
        counters.adder("blockyard_worker_hit_tokens_total", tier=tier),
    )
