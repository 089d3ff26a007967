"""What the leader is asked: who holds these keys? Owns the questions under way and how long each is waited for.

One question serves all who want to know the same. What comes late is still of use to those who come later.
"""

from dataclasses import dataclass

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import MAX_LOCATED, TIER_HOST, Locate, Span

LATE_SECONDS = 1.0
"""How long an answer is taken in that nobody waits for any more."""

_Same = tuple[Key, Key, int, bool]


@dataclass(slots=True, eq=False)
class Question:
    """`number` is that of a read, for those who wait."""

    number: int
    keys: list[Key]
    prefix: bool
    asked_at: float
    waited: bool = True

    @property
    def same(self) -> _Same:
        """What a question for the same has in common with it."""
        return self.keys[0], self.keys[-1], len(self.keys), self.prefix


class Questions:
    """By number, in the order in which they were asked."""

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self.all: dict[int, Question] = {}
        self._waited: dict[_Same, Question] = {}

    @property
    def full(self) -> bool:
        return len(self.all) >= self._limit

    def same(self, keys: list[Key], prefix: bool) -> Question | None:
        """The question under way for just these keys."""
        keys = keys[:MAX_LOCATED]
        return self._waited.get((keys[0], keys[-1], len(keys), prefix))

    def ask(self, number: int, keys: list[Key], prefix: bool, now: float) -> Locate:
        """A new question. Precondition: keys is not empty, and there is room for it."""
        question = Question(number, keys[:MAX_LOCATED], prefix, now)
        self.all[number] = question
        self._waited[question.same] = question
        return Locate(number, question.keys, prefix)

    def answered(self, number: int) -> Question | None:
        """The question of this number, which is over; None when it was given up long ago."""
        question = self.all.pop(number, None)
        if question is not None:
            self._unwait(question)
        return question

    def late(self, now: float) -> list[Question]:
        """Those that were waited for too long; nobody does any more. What is older is forgotten."""
        late = [one for one in self.all.values() if one.waited and now >= one.asked_at + self._patience]
        for question in late:
            question.waited = False
            self._unwait(question)
        for number in [
            one.number for one in self.all.values() if not one.waited and now >= one.asked_at + LATE_SECONDS
        ]:
            del self.all[number]
        return late

    def end(self) -> list[Question]:
        """No answer can come any more; returns those that were waited for."""
        waited = [one for one in self.all.values() if one.waited]
        self.all.clear()
        self._waited.clear()
        return waited

    def next_deadline(self) -> float | None:
        """When the first of them has been waited for too long."""
        first = next((one for one in self.all.values() if one.waited), None)
        return None if first is None else first.asked_at + self._patience

    def waited_for(self) -> set[int]:
        return {one.number for one in self.all.values() if one.waited}

    def _unwait(self, question: Question) -> None:
        if self._waited.get(question.same) is question:
            del self._waited[question.same]


def holders_of(count: int, spans: list[Span]) -> list[list[str]]:
    """By place in the question: the nodes that hold that key, those that have it in host memory first."""
    nodes: list[list[str]] = [[] for _ in range(count)]
    for span in sorted(spans, key=lambda one: not one.tiers & TIER_HOST):
        for at in range(span.first, min(span.first + span.count, count)):
            if span.node not in nodes[at]:
                nodes[at].append(span.node)
    return nodes
