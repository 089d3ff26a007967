"""Least recently used, deepest chunk of a request first. Owns an order of keys and nothing else.

A prefix is of no use without its root, so within one request the deepest chunk must go first: callers touch a
request's chunks deepest first, and the root ends up as the most recent.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from blockyard.common.identity import Key


class LeastRecentlyUsed:
    """Every operation is O(1) but `victim`, which passes over chunks in use."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[Key, None] = OrderedDict()

    def insert(self, key: Key) -> None:
        self._order[key] = None

    def touch(self, keys: Iterable[Key]) -> None:
        move = self._order.move_to_end
        for key in keys:
            move(key)

    def remove(self, key: Key) -> None:
        del self._order[key]

    def victim(self, in_use: Callable[[Key], bool]) -> Key | None:
        """A chunk in use counts as recent: it is moved out of the way once, not passed over each time."""
        for _ in range(len(self._order)):
            key = next(iter(self._order))
            if not in_use(key):
                return key
            self._order.move_to_end(key)
        return None

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: Key) -> bool:
        return key in self._order
