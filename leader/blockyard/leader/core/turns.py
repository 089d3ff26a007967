"""Who may send a snapshot now. Owns the turns and the queue for them; must never know what is in a snapshot.

At most `limit` links have a turn. The rest wait in the order of their offers, one place each. A turn ends with its
snapshot, with its link, or when nothing has come of it for `patience` seconds.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Turn:
    """The snapshot as of Delta `seq` is taken in; something of it was last heard or asked for at `moved`."""

    seq: int
    moved: float


class Turns:
    """By link. Each link has a turn, or waits for one, or neither."""

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self.given: dict[int, Turn] = {}
        self.waiting: dict[int, int] = {}

    def ask(self, link: int, seq: int) -> None:
        """A snapshot is offered. A link that begins anew keeps its turn, but is told so once more."""
        if link in self.given:
            del self.given[link]
            self.waiting = {link: seq} | self.waiting
        else:
            self.waiting[link] = seq

    def give(self, now: float) -> list[tuple[int, int]]:
        """Links that have just got a turn, and the seq that each has offered."""
        told = []
        while self.waiting and len(self.given) < self._limit:
            link = next(iter(self.waiting))
            seq = self.waiting.pop(link)
            self.given[link] = Turn(seq, now)
            told.append((link, seq))
        return told

    def moved(self, now: float, link: int) -> Turn | None:
        """Something came of this link's snapshot; its turn, if it has one."""
        turn = self.given.get(link)
        if turn is not None:
            turn.moved = now
        return turn

    def leave(self, link: int) -> None:
        """The link's snapshot is over, or will not come."""
        self.given.pop(link, None)
        self.waiting.pop(link, None)

    def expire(self, now: float) -> None:
        """Take the turn from whoever makes no use of it."""
        for link in [link for link, turn in self.given.items() if now - turn.moved >= self._patience]:
            del self.given[link]
