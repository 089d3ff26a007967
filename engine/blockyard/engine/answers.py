"""Questions that await their grant. Owns the bookkeeping of acquire's answers; must never know the link.

At most MAX_WAITING are open at once; further ones are not asked.
"""

from dataclasses import dataclass

from blockyard.common.messages import attach
from blockyard.common.messages.states import KeyState
from blockyard.engine.detached import REFUSED, Detached, Reason

MAX_WAITING = 1024

_STATES = bytes(KeyState)


@dataclass(frozen=True, slots=True)
class Grant:
    """Answer to one acquire: a KeyState byte per key, runs one after the other.

    Hits are pinned under `number` (0: nothing pinned), which a rank's load job names. `attachment` keeps a
    grant of an earlier session from being taken for one of the present.
    """

    number: int
    states: bytes
    attachment: int


class Answers:
    """Sequence numbers never repeat, so an answer or a question of an earlier session finds nothing here."""

    def __init__(self) -> None:
        self._next = 1
        self._waiting: dict[int, tuple[int, float]] = {}
        self._come: dict[int, Grant] = {}
        self._abandoned: set[int] = set()

    @property
    def waiting(self) -> bool:
        """Whether any answer is still to come."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether another question would exceed the bound."""
        return len(self._waiting) + len(self._come) >= MAX_WAITING

    def ask(self, keys: int, now: float) -> int:
        """Number of a new question about `keys` keys."""
        seq = self._next
        self._next += 1
        self._waiting[seq] = (keys, now)
        return seq

    def awaits(self, seq: int) -> bool:
        """Whether this answer is still to come."""
        return seq in self._waiting

    def take(self, seq: int) -> Grant | None:
        """An answer that has come, once."""
        return self._come.pop(seq, None)

    def abandon(self, seq: int) -> Grant | None:
        """Nobody will take this answer; if it has come already it is returned, to be released."""
        if seq in self._waiting:
            self._abandoned.add(seq)
        return self._come.pop(seq, None)

    def answered(self, grant: attach.Grant, attachment: int, now: float) -> tuple[float, Grant | None]:
        """Book an answer: seconds it took, and the grant itself if it was abandoned. Raises Detached on
        nonsense.
        """
        if grant.seq not in self._waiting:
            raise Detached(Reason(REFUSED, f"worker answered question {grant.seq}, which was not asked"))
        keys, asked_at = self._waiting.pop(grant.seq)
        if len(grant.states) != keys or grant.states.translate(None, _STATES):
            raise Detached(
                Reason(REFUSED, f"worker answered {len(grant.states)} states to {keys} keys, or unknown ones")
            )
        answer = Grant(grant.grant, grant.states, attachment)
        if grant.seq in self._abandoned:
            self._abandoned.remove(grant.seq)
            return now - asked_at, answer
        self._come[grant.seq] = answer
        return now - asked_at, None

    def longest_wait(self, now: float) -> float:
        """Seconds since the oldest open question was asked; 0 if there is none."""
        return max((now - asked_at for _, asked_at in self._waiting.values()), default=0.0)

    def clear(self) -> None:
        """The session is gone: no answer will come, and those that came pin nothing any more."""
        self._waiting.clear()
        self._come.clear()
        self._abandoned.clear()
