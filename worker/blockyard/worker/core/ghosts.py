"""Why a key is not here any more. Owns a bounded memory of keys that left; must never be needed for a right
answer.
"""

from collections import OrderedDict

from blockyard.common.identity import Key
from blockyard.common.messages.states import KeyState


class Ghosts:
    """The last keys that left, with the reason; the oldest is forgotten when there are too many."""

    __slots__ = ("_limit", "_reasons")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reasons: OrderedDict[Key, KeyState] = OrderedDict()

    def add(self, key: Key, reason: KeyState) -> None:
        self._reasons[key] = reason
        self._reasons.move_to_end(key)
        if len(self._reasons) > self._limit:
            self._reasons.popitem(last=False)

    def forget(self, key: Key) -> None:
        self._reasons.pop(key, None)

    def reason(self, key: Key) -> KeyState:
        """The reason a key is missed: NEVER_STORED as far as is remembered."""
        return self._reasons.get(key, KeyState.NEVER_STORED)

    def __len__(self) -> int:
        return len(self._reasons)
