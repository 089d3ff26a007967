"""The peers as a machine of its parts: the worker's events go in here, what follows goes out as instructions.

Owns when the leader is asked and what its answers mean. Must never know sessions of engines; who waits for reads is
told the numbers of those that ended, questions among them.
"""

from collections.abc import Callable

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import Locate
from blockyard.common.messages.states import KeyState
from blockyard.common.metrics.counters import Counters
from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.disk.tier import DiskTier
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.instructions import Instruction, Publish
from blockyard.worker.core.peers import wire
from blockyard.worker.core.peers.fetching import Fetching
from blockyard.worker.core.peers.holders import Holders
from blockyard.worker.core.peers.questions import Question, Questions, holders_of
from blockyard.worker.core.peers.roster import Roster
from blockyard.worker.core.peers.serving import Serving
from blockyard.worker.core.peers.settings import PeerSettings
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.worlds import WorldBook


class PeerTier:
    """`read_ended` is called with each fetch and question that nobody has to wait for any longer, and how it went."""

    def __init__(
        self,
        settings: PeerSettings,
        pool_bytes: int,
        counters: Counters,
        holdings: Holdings,
        worlds: WorldBook,
        disk: DiskTier,
        emit: Callable[[Instruction], None],
        read_ended: Callable[[int, bool], None],
    ) -> None:
        self.settings = settings
        self._counters = counters
        self._number = disk.operations.next_number
        self._emit = emit
        self._read_ended = read_ended
        self.roster = Roster()
        self.holders = Holders(settings.max_hints, settings.fresh, settings.hint_ttl)
        self.questions = Questions(settings.max_questions, settings.locate_wait)
        self.fetching = Fetching(
            settings, pool_bytes, counters, holdings, self.roster, self.holders, self._number, emit, read_ended
        )
        self.serving = Serving(settings, counters, holdings, worlds, disk.promoting, emit)
        self._answers = False
        """The leader of the link that is up answers questions."""

    @property
    def active(self) -> bool:
        """Whether there is anybody to fetch from."""
        return self.settings.enabled and bool(self.roster.by_node)

    @property
    def may_ask(self) -> bool:
        """Whether the leader would answer a question."""
        return self._answers and not self.questions.full

    @property
    def reads(self) -> set[int]:
        """Fetches and questions that can be waited for now."""
        return self.questions.waited_for() | set(self.fetching.by_number)

    def next_deadline(self) -> float | None:
        deadlines = (self.questions.next_deadline(), self.fetching.next_deadline(), self.serving.next_deadline())
        return min((one for one in deadlines if one is not None), default=None)

    def tick(self, now: float) -> None:
        """What waits for too long is given up."""
        for question in self.questions.late(now):
            self._unanswered(question, now)
        self.fetching.expire(now)
        self.serving.expire(now)

    # -- what a run lacks --------------------------------------------------------------------------------------

    def holders_of(self, key: Key, now: float, may_ask: bool) -> list[str] | None:
        """Who is said to hold a key; None if that is not known and the leader should be asked."""
        return self.holders.nodes(key, now, may_ask)

    def fetch(self, key: Key, parent: Key, size_class: SizeClass, nodes: list[str], now: float) -> int:
        """Begin to fetch a chunk; its number as a read, or 0. `send` follows."""
        return self.fetching.begin(key, parent, size_class, nodes, now)

    def send(self, now: float) -> None:
        self.fetching.send(now)

    def ask(self, keys: list[Key], prefix: bool, now: float) -> int:
        """Ask the leader who holds these; the number to wait for."""
        same = self.questions.same(keys, prefix)
        if same is not None:
            return same.number
        number = self._number()
        self._counters.add("blockyard_worker_peer_questions_total")
        self._publish(self.questions.ask(number, keys, prefix, now))
        return number

    def unknown(self, key: Key, now: float) -> None:
        """Nobody can be asked who holds this key."""
        self.holders.unanswered(key, now)

    def miss(self, key: Key, now: float) -> KeyState | None:
        """Why peers were of no use for this key, if they should have been."""
        return self.holders.miss(key, now) if self.active else None

    def abandon(self, chunk: Chunk) -> None:
        """What is being fetched into this slot is not wanted any more."""
        self.fetching.abandon(chunk)

    # -- events ------------------------------------------------------------------------------------------------

    def link_up(self) -> None:
        """Another link: its leader has not yet said that it answers questions."""
        self._answers = False

    def link_down(self, now: float) -> None:
        """No question will be answered. What is known of peers stands."""
        self._answers = False
        for question in self.questions.end():
            self._unanswered(question, now)

    def known(self, event: wire.PeersKnown) -> None:
        self.roster.known(event.peers)
        self._answers = bool(event.peers)

    def located(self, event: wire.Located, now: float) -> None:
        """Take in what the leader says, of a prefix up to the first key that nobody holds."""
        question = self.questions.answered(event.number)
        if question is None:
            return
        waited = question.waited
        question.waited = False
        for key, nodes in zip(question.keys, holders_of(len(question.keys), event.spans), strict=True):
            if nodes or event.whole:
                self.holders.learn(key, nodes, now)
            else:
                self.holders.unanswered(key, now)
            if not nodes and question.prefix:
                break
        if waited:
            self._read_ended(question.number, True)

    def read(self, event: wire.PeerRead, now: float) -> None:
        self.fetching.read(event.op, event.checksums, now)

    def failed(self, event: wire.PeerFailed, now: float) -> None:
        self.fetching.failed(event.op, event.reason, now)

    def asked(self, event: wire.PeerAsked, now: float) -> None:
        self.serving.asked(event, now)

    def served(self, event: wire.PeerServed) -> None:
        self.serving.served(event.session, event.number)

    def session_closed(self, event: wire.PeerSessionClosed) -> None:
        self.serving.closed(event.session)

    def _unanswered(self, question: Question, now: float) -> None:
        """Go on with what is known. Those who waited do not ask again."""
        self._counters.add("blockyard_worker_peer_questions_unanswered_total")
        for key in question.keys[:1] if question.prefix else question.keys:
            self.holders.unanswered(key, now)
        self._read_ended(question.number, True)

    def _publish(self, message: Locate) -> None:
        self._emit(Publish([message]))
