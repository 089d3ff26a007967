"""Who else holds some keys: a worker's Locate, answered in spans.

Owns this one question; changes nothing. Keys of one prefix mostly share the very same tuple of placements, so what is
looked at is one tuple per stretch of keys. Of a tuple of very many holders only some are looked at, from a place
that depends on the asker: so the answer takes bounded time, and askers of a common prompt are sent to different peers.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import MAX_HOLDERS, TIER_DISK, TIER_HOST, Span
from blockyard.leader.core.ownership import ALL_TIERS, HOLDER_SHIFT, Placements

LOOKED_AT = 16
"""Placements of one key that are considered."""

_SPREAD = 2_654_435_761
_SERVED = TIER_HOST | TIER_DISK


class _Open:
    """A span that may go on."""

    def __init__(self, first: int, node: str, tiers: int) -> None:
        self.first = first
        self.node = node
        self.tiers = tiers

    def closed(self, end: int) -> Span:
        """The span up to and without key `end`."""
        return Span(self.first, end - self.first, self.node, self.tiers)


class Locating:
    """One question. `peer` says by which node a holder can be asked; None if it cannot."""

    def __init__(self, peer: Callable[[int], str | None], asker: int) -> None:
        self._peer = peer
        self._asker = asker
        self._nodes: dict[int, str | None] = {}
        self._open: dict[int, _Open] = {}
        self._spans: list[Span] = []

    def spans(self, placements: Callable[[Key], Placements], keys: Sequence[Key], prefix: bool) -> list[Span]:
        """The answer. With `prefix` it ends where nobody can give the next key, and the asker has not got it either."""
        last: Placements | None = None
        end = len(keys)
        for position, key in enumerate(keys):
            held = placements(key)
            if held is last:
                continue
            last = held
            self._turn(position, held)
            if prefix and not self._open and not self._own(held):
                end = position
                break
        for span in self._open.values():
            self._spans.append(span.closed(end))
        return sorted(self._spans, key=lambda span: (span.first, not span.tiers & TIER_HOST))

    def _turn(self, position: int, held: Placements) -> None:
        """From this key on other holders count: end the spans that they are not of, begin those of the best."""
        if len(self._open) == MAX_HOLDERS and all(
            span.tiers & TIER_HOST and _tiers_of(held, holder) == span.tiers for holder, span in self._open.items()
        ):
            return
        chosen = self._chosen(held)
        for holder, span in list(self._open.items()):
            if chosen.get(holder) != span.tiers:
                self._spans.append(span.closed(position))
                del self._open[holder]
        for holder, tiers in chosen.items():
            if holder not in self._open:
                node = self._node(holder)
                assert node is not None
                self._open[holder] = _Open(position, node, tiers)

    def _chosen(self, held: Placements) -> dict[int, int]:
        """Up to MAX_HOLDERS holders and their tiers: those with host memory first, then those of open spans."""
        found = {}
        for holder in self._open:
            tiers = _tiers_of(held, holder)
            if tiers:
                found[holder] = tiers
        if len(found) < MAX_HOLDERS or not all(tiers & TIER_HOST for tiers in found.values()):
            self._look_for_more(held, found)
        best = sorted(found, key=lambda holder: not found[holder] & TIER_HOST)
        return {holder: found[holder] for holder in best[:MAX_HOLDERS]}

    def _look_for_more(self, held: Placements, found: dict[int, int]) -> None:
        """Add holders to those found, until there are enough with host memory."""
        count = len(held)
        if not count:
            return
        # Numbers of holders have a pattern of their own, that of a hash has none.
        start = (self._asker * _SPREAD >> 8) % count
        enough = sum(tiers & TIER_HOST for tiers in found.values())
        for place in range(start, start + min(count, LOOKED_AT)):
            placement = held[place % count]
            holder, tiers = placement >> HOLDER_SHIFT, placement & _SERVED
            if tiers and holder not in found and self._node(holder) is not None:
                found[holder] = tiers
                enough += tiers & TIER_HOST
                if enough >= MAX_HOLDERS:
                    return

    def _own(self, held: Placements) -> bool:
        return bool(_tiers_of(held, self._asker))

    def _node(self, holder: int) -> str | None:
        if holder not in self._nodes:
            self._nodes[holder] = None if holder == self._asker else self._peer(holder)
        return self._nodes[holder]


def _tiers_of(held: Placements, holder: int) -> int:
    """The tiers that can be served in which this holder has it; 0 if none."""
    place = bisect_left(held, holder << HOLDER_SHIFT)
    if place < len(held) and held[place] >> HOLDER_SHIFT == holder:
        return held[place] & ALL_TIERS & _SERVED
    return 0
