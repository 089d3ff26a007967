"""Chunks on their way from peers. Owns which are, their tries and their bounds; never knows who waits.

One chunk is fetched once at a time, however many ask for it, into a slot taken like a store's. When one holder fails
the next is tried, a few times and within one deadline for all. Each try is an operation, which ends exactly once,
however late; a slot that is not wanted any more is out of use until then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from blockyard.common.identity import Key
from blockyard.common.messages.states import KeyState
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction
from blockyard.worker.core.peers.holders import Holders
from blockyard.worker.core.peers.roster import Peer, Roster
from blockyard.worker.core.peers.settings import PeerSettings
from blockyard.worker.core.peers.wire import CancelFetches, FetchChunks, FetchFault, FetchItem
from blockyard.worker.core.slots import SizeClass

_HARMLESS = ("not-here", "busy", "shape")
"""Answers of a peer that works."""


@dataclass(slots=True, eq=False)
class Batch:
    """What one FetchChunks asks of one peer. Its faults count once, however many chunks they cost."""

    peer: Peer
    failed: bool = False


@dataclass(slots=True, eq=False)
class Fetch:
    """`number` is that of a read, for those who wait; `op` that of the try under way."""

    number: int
    chunk: Chunk
    nodes: list[str]
    deadline: float
    batch: Batch
    op: int = 0
    tried: list[str] = field(default_factory=list)
    wanted: bool = True


class Fetching:
    """`begin` starts a fetch, `send` hands over those that were begun since it was called last."""

    def __init__(
        self,
        settings: PeerSettings,
        pool_bytes: int,
        counters: Counters,
        holdings: Holdings,
        roster: Roster,
        holders: Holders,
        number: Callable[[], int],
        emit: Callable[[Instruction], None],
        read_ended: Callable[[int, bool], None],
    ) -> None:
        self._settings = settings
        self._budget = int(settings.fetching_share * pool_bytes)
        self._counters = counters
        self._holdings = holdings
        self._roster = roster
        self._holders = holders
        self._number = number
        self._emit = emit
        self._read_ended = read_ended
        self.by_op: dict[int, Fetch] = {}
        self.by_number: dict[int, Fetch] = {}
        """Those that are wanted, in the order of their deadlines."""
        self._unsent: dict[Peer, list[Fetch]] = {}
        self.fetching_bytes = 0

    def begin(self, key: Key, parent: Key, size_class: SizeClass, nodes: list[str], now: float) -> int:
        """The number of the new fetch; 0 when no holder may be asked, or there is no room."""
        peer = self._choose(nodes, [], now)
        if peer is None:
            self._holders.missed(key, KeyState.PEER_GONE, now)
            return 0
        full = self.fetching_bytes and self.fetching_bytes + size_class.slot_bytes > self._budget
        chunk = None if full else self._holdings.reserve(key, parent, size_class, "")
        if chunk is None:
            self._holders.missed(key, KeyState.DEADLINE, now)
            return 0
        fetch = Fetch(self._number(), chunk, list(nodes), now + self._settings.fetch_wait, Batch(peer))
        chunk.read, chunk.from_peer = fetch.number, True
        self.by_number[fetch.number] = fetch
        self.fetching_bytes += size_class.slot_bytes
        self._counters.add("blockyard_worker_peer_fetches_started_total")
        self._try(fetch, peer)
        return fetch.number

    def send(self, now: float) -> None:
        """Ask the peers for what was begun."""
        unsent, self._unsent = self._unsent, {}
        for peer, fetches in unsent.items():
            rest = iter(fetches)
            while some := list(islice(rest, self._settings.max_batch)):
                self._send(peer, some, now)

    def abandon(self, chunk: Chunk) -> None:
        """What is being fetched into this slot is not wanted any more."""
        fetch = self.by_number[chunk.read]
        fetch.wanted = False
        self._emit(CancelFetches([fetch.op]))
        self._come_to_nothing(fetch, "cancelled")

    def read(self, op: int, checksums: tuple[int, ...], now: float) -> None:
        """A chunk is in its slot."""
        fetch = self._end(op)
        if fetch is None:
            return
        chunk = fetch.chunk
        if len(checksums) != chunk.size_class.areas:
            self._failed(fetch, "corrupt", now)
            return
        fetch.batch.peer.breaker.succeeded()
        self._counters.add(
            "blockyard_worker_peer_read_bytes_total", chunk.size_class.area_bytes * chunk.size_class.areas
        )
        if chunk.state is ChunkState.DOOMED:
            self._holdings.use_ended(chunk)
            return
        self._over(fetch)
        self._counters.add("blockyard_worker_peer_fetches_completed_total")
        self._holders.forget(chunk.key)
        self._holdings.promoted(chunk, checksums)
        self._read_ended(fetch.number, True)

    def failed(self, op: int, reason: FetchFault, now: float) -> None:
        """A try came to nothing."""
        fetch = self._end(op)
        if fetch is not None:
            self._failed(fetch, reason, now)

    def expire(self, now: float) -> None:
        """Give up what has taken too long: its peer hangs."""
        late = []
        for fetch in self.by_number.values():
            if fetch.deadline > now:
                break
            late.append(fetch)
        for fetch in late:
            self._blame(fetch, "deadline", now)
            self._holders.failed(fetch.chunk.key, fetch.batch.peer.node, now)
            fetch.wanted = False
            self._emit(CancelFetches([fetch.op]))
            self._come_to_nothing(fetch, "deadline")

    def next_deadline(self) -> float | None:
        return next((one.deadline for one in self.by_number.values()), None)

    # -- tries -----------------------------------------------------------------------------------------------

    def _choose(self, nodes: list[str], tried: list[str], now: float) -> Peer | None:
        """The best holder that works, or one that it is time to try again."""
        usable = [peer for node in nodes if node not in tried and (peer := self._roster.usable(node, now))]
        return next((peer for peer in usable if peer.breaker.closed), usable[0] if usable else None)

    def _try(self, fetch: Fetch, peer: Peer) -> None:
        if not peer.breaker.closed:
            peer.breaker.probe()
        fetch.op = self._number()
        fetch.tried.append(peer.node)
        fetch.chunk.copiers += 1
        self.by_op[fetch.op] = fetch
        self._unsent.setdefault(peer, []).append(fetch)

    def _send(self, peer: Peer, fetches: list[Fetch], now: float) -> None:
        """Precondition: all are of one class, as those that are begun together are."""
        batch = Batch(peer)
        items = []
        for fetch in fetches:
            fetch.batch = batch
            chunk = fetch.chunk
            items.append(FetchItem(fetch.op, chunk.key, chunk.slot, chunk.generation, chunk.offset))
        size_class = fetches[0].chunk.size_class
        self._emit(
            FetchChunks(
                node=peer.node,
                incarnation=peer.incarnation,
                address=peer.address,
                fingerprint=size_class.fingerprint,
                group=size_class.group,
                area_bytes=size_class.area_bytes,
                areas=size_class.areas,
                stride=size_class.area_stride,
                deadline_s=min(fetch.deadline for fetch in fetches) - now,
                items=items,
            )
        )

    def _end(self, op: int) -> Fetch | None:
        fetch = self.by_op.pop(op, None)
        if fetch is not None:
            fetch.chunk.copiers -= 1
        return fetch

    def _failed(self, fetch: Fetch, reason: FetchFault, now: float) -> None:
        self._counters.add("blockyard_worker_peer_tries_failed_total", reason=reason)
        self._blame(fetch, reason, now)
        chunk, node = fetch.chunk, fetch.batch.peer.node
        if chunk.state is ChunkState.DOOMED:
            self._holdings.use_ended(chunk)
            return
        self._holders.failed(chunk.key, node, now)
        left = len(fetch.tried) < self._settings.max_tries and now < fetch.deadline
        peer = self._choose(fetch.nodes, fetch.tried, now) if left else None
        if peer is None:
            self._holders.missed(chunk.key, KeyState.PEER_GONE, now)
            self._come_to_nothing(fetch, reason)
            return
        self._try(fetch, peer)
        self.send(now)

    def _blame(self, fetch: Fetch, reason: FetchFault, now: float) -> None:
        """What this says of the peer. A fetch that was cancelled says nothing, unless it was to show that it works."""
        batch = fetch.batch
        breaker = batch.peer.breaker
        if reason in _HARMLESS:
            breaker.succeeded()
        elif not batch.failed and (fetch.wanted or breaker.state == "probing"):
            batch.failed = True
            if breaker.failed(now, hung=reason in ("corrupt", "deadline")):
                self._counters.add("blockyard_worker_peer_breaker_opened_total", reason=reason)

    def _come_to_nothing(self, fetch: Fetch, reason: str) -> None:
        self._over(fetch)
        self._counters.add("blockyard_worker_peer_fetches_failed_total", reason=reason)
        self._holdings.abort(fetch.chunk)
        self._read_ended(fetch.number, False)

    def _over(self, fetch: Fetch) -> None:
        """Nobody waits for it any more."""
        del self.by_number[fetch.number]
        fetch.chunk.read = 0
        self.fetching_bytes -= fetch.chunk.size_class.slot_bytes
