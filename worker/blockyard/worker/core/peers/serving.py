"""Chunks on their way to peers. Owns what each peer's question holds here, and until when.

What lies on this worker's own disk is read first, as far as that is possible in half of the time that the peer gives:
the other half is for sending. What is itself on its way from a peer is not waited for, lest two wait for each other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from blockyard.common.identity import Key
from blockyard.common.messages.peer import FetchState
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.disk.promoting import Promoting
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction
from blockyard.worker.core.peers.settings import PeerSettings
from blockyard.worker.core.peers.wire import PeerAsked, ServeChunks, ServeItem
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.worlds import WorldBook


@dataclass(slots=True, eq=False)
class Served:
    """One question of one peer. `chunks` are those that it will get, each with a copier for it; `reads` come first."""

    asked: PeerAsked
    size_class: SizeClass
    deadline: float
    keys: list[Key]
    chunks: dict[Key, Chunk] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)
    answered: bool = False


class Serving:
    """By session: each has one question at a time."""

    def __init__(
        self,
        settings: PeerSettings,
        counters: Counters,
        holdings: Holdings,
        worlds: WorldBook,
        promoting: Promoting,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._holdings = holdings
        self._worlds = worlds
        self._promoting = promoting
        self._emit = emit
        self.all: dict[int, Served] = {}
        self.leaving: list[Served] = []
        """Those whose session is gone, and whose bytes are perhaps still being sent."""

    def asked(self, event: PeerAsked, now: float) -> None:
        """Hold what is here for the peer, and answer as soon as what can be read from disk is."""
        size_class, refusal = self._class_of(event)
        if size_class is None or event.session in self.all:
            self._refuse(event, FetchState.BUSY if event.session in self.all else refusal)
            return
        keys = list(dict.fromkeys(event.keys[: self._settings.max_asked]))
        room = max(0, self._settings.max_serving - self.chunks)
        one = Served(event, size_class, now + event.deadline_s / 2, keys[:room])
        self.all[event.session] = one
        for key in one.keys:
            self._hold(one, key, now)
        if not one.reads:
            self._answer(one)

    def read_ended(self, number: int) -> None:
        """A read from disk is over."""
        for one in [one for one in self.all.values() if number in one.reads]:
            one.reads.discard(number)
            if not one.reads:
                self._answer(one)

    def served(self, session: int, number: int) -> None:
        """Nothing is sent of this question's answer any more."""
        one = self.all.get(session)
        if one is not None and one.answered and one.asked.number == number:
            del self.all[session]
            self._let_go(one)
            return
        for one in self.leaving:
            if (one.asked.session, one.asked.number) == (session, number):
                self.leaving.remove(one)
                self._let_go(one)
                return

    def closed(self, session: int) -> None:
        """The peer is gone."""
        one = self.all.pop(session, None)
        if one is not None and one.answered:
            self.leaving.append(one)
        elif one is not None:
            self._let_go(one)

    def expire(self, now: float) -> None:
        """Answer those that cannot wait for the disk any longer."""
        for one in [one for one in self.all.values() if not one.answered and one.deadline <= now]:
            one.reads.clear()
            self._answer(one)

    def next_deadline(self) -> float | None:
        return min((one.deadline for one in self.all.values() if not one.answered), default=None)

    @property
    def chunks(self) -> int:
        """Chunks that are held for peers, or will be."""
        return sum(len(one.keys) for one in (*self.all.values(), *self.leaving))

    def _class_of(self, event: PeerAsked) -> tuple[SizeClass | None, FetchState]:
        world = self._worlds.get(event.fingerprint)
        size_class = None if world is None else world.classes.get(event.group)
        if size_class is None:
            return None, FetchState.NOT_HERE
        same = (size_class.area_bytes, size_class.areas) == (event.area_bytes, event.areas)
        return (size_class, FetchState.OK) if same else (None, FetchState.SHAPE)

    def _hold(self, one: Served, key: Key, now: float) -> None:
        """Count as a copier of the chunk, or wait for it."""
        chunk = self._holdings.index.get(key)
        if chunk is None:
            copy = one.size_class.on_disk.get(key)
            read = 0 if copy is None else self._promoting.start(copy, now)
            if read:
                one.reads.add(read)
        elif self._is_served(one, chunk):
            chunk.copiers += 1
            one.chunks[key] = chunk
        elif chunk.size_class is one.size_class and chunk.read and not chunk.from_peer:
            one.reads.add(chunk.read)

    def _answer(self, one: Served) -> None:
        for key in one.keys:
            chunk = self._holdings.index.get(key)
            if key not in one.chunks and chunk is not None and self._is_served(one, chunk):
                chunk.copiers += 1
                one.chunks[key] = chunk
        # A chunk that was dropped meanwhile must not be given to anyone any more.
        for key, chunk in list(one.chunks.items()):
            if chunk.state is not ChunkState.READY:
                del one.chunks[key]
                self._end_use(chunk)
        one.answered = True
        asked, kept = one.asked, set(one.keys)
        missing = [FetchState.NOT_HERE if key in kept else FetchState.BUSY for key in asked.keys]
        states: list[FetchState] = []
        items: list[ServeItem] = []
        given: set[Key] = set()
        for key, state in zip(asked.keys, missing, strict=True):
            served = one.chunks.get(key)
            if served is None or key in given:
                states.append(state)
                continue
            given.add(key)
            states.append(FetchState.OK)
            items.append(ServeItem(served.slot, served.generation, served.offset, served.checksums))
        self._tell(asked, one.size_class, states, items)

    def _is_served(self, one: Served, chunk: Chunk) -> bool:
        return chunk.size_class is one.size_class and chunk.state is ChunkState.READY and chunk.checked

    def _refuse(self, event: PeerAsked, state: FetchState) -> None:
        """Nothing is held for it, so nothing ends with its PeerServed."""
        self._tell(event, None, [state] * len(event.keys), [])

    def _tell(
        self, asked: PeerAsked, size_class: SizeClass | None, states: list[FetchState], items: list[ServeItem]
    ) -> None:
        for state in FetchState:
            if count := states.count(state):
                self._counters.add("blockyard_worker_peer_served_chunks_total", count, state=state.label)
        stride = 0 if size_class is None else size_class.area_stride
        self._emit(ServeChunks(asked.session, asked.number, states, asked.area_bytes, stride, items))

    def _let_go(self, one: Served) -> None:
        for chunk in one.chunks.values():
            self._end_use(chunk)
        one.chunks.clear()

    def _end_use(self, chunk: Chunk) -> None:
        chunk.copiers -= 1
        self._holdings.use_ended(chunk)
