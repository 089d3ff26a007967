"""What is known of who holds which key: the leader's answers and what fetches found out. Owns a bounded memory of it.

None of it need be true: whoever is asked for a key may say that it is not there. What is not fresh any more is of use
only where the leader cannot be asked.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.common.identity import Key
from blockyard.common.messages.states import KeyState


@dataclass(slots=True)
class Hint:
    """Since `at`: the nodes that are said to hold the key, best first; none if nobody does, or did not give it.

    `miss` is why they were of no use at `missed_at`; None if they were, or were not needed.
    """

    at: float
    nodes: list[str]
    miss: KeyState | None = None
    missed_at: float = 0.0


class Holders:
    """The last `limit` keys that something was learnt about."""

    def __init__(self, limit: int, fresh: float, ttl: float) -> None:
        self._limit = limit
        self._fresh = fresh
        self._ttl = ttl
        self._hints: OrderedDict[Key, Hint] = OrderedDict()

    def learn(self, key: Key, nodes: Iterable[str], now: float) -> None:
        """The leader says who holds a key; nobody, if there are none."""
        self._put(key, Hint(now, list(nodes)))

    def unanswered(self, key: Key, now: float) -> None:
        """The leader does not say; what was known before stands."""
        hint = self._hints.get(key)
        if hint is None or not hint.nodes:
            self._put(key, Hint(now, [], KeyState.LEADER_UNKNOWN, now))

    def failed(self, key: Key, node: str, now: float) -> None:
        """A holder did not give it."""
        hint = self._hints.get(key)
        if hint is None or node not in hint.nodes:
            return
        hint.nodes.remove(node)
        if not hint.nodes:
            self._put(key, Hint(now, [], KeyState.PEER_GONE, now))

    def missed(self, key: Key, reason: KeyState, now: float) -> None:
        """Its holders cannot be asked for it now."""
        hint = self._hints.get(key)
        if hint is not None:
            hint.miss, hint.missed_at = reason, now

    def forget(self, key: Key) -> None:
        """It is here now."""
        self._hints.pop(key, None)

    def nodes(self, key: Key, now: float, may_ask: bool) -> list[str] | None:
        """Who is said to hold a key, best first; None if that is better asked for."""
        hint = self._hints.get(key)
        if hint is None or now - hint.at > (self._fresh if may_ask else self._ttl):
            return None
        if not hint.nodes and now - hint.at > self._fresh:
            return None
        return hint.nodes

    def miss(self, key: Key, now: float) -> KeyState | None:
        """Why the peers were of no use for a key, if that was found out just now."""
        hint = self._hints.get(key)
        return None if hint is None or now - hint.missed_at > self._fresh else hint.miss

    def _put(self, key: Key, hint: Hint) -> None:
        self._hints[key] = hint
        self._hints.move_to_end(key)
        if len(self._hints) > self._limit:
            self._hints.popitem(last=False)

    def __len__(self) -> int:
        return len(self._hints)
