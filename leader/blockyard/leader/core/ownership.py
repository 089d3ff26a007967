"""The ownership index: which worker holds a key, and in which tiers.

Owns the placements and their memory. Must never know links, sequence numbers or why a claim was made.

A placement is one int, `holder << 3 | tiers`; a key's placements are a sorted tuple of them. Tuples are
shared between keys: a key with one holder costs its own 32 bytes and a dict entry, and keys of one prefix
mostly share the very same tuple, which matching uses. A holder is one *version* of a worker's claims: a
snapshot is collected under a holder of its own that nobody sees, and swapped in by showing it and retiring
the old one. Both take no time; what a retired holder leaves behind is never shown and is swept out in small
steps.

Keys are spread over 256 dicts by their first byte (keys are digests): no single dict grows in one long
pause. Each holder has rolling digests of what it has, kept with every change.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from blockyard.common.digests import RollingDigests
from blockyard.common.identity import Key
from blockyard.common.messages.cluster import BUCKETS, TIER_DISK, TIER_GPU, TIER_HOST, Change, Replacement

TIER_BITS = 3
ALL_TIERS = TIER_HOST | TIER_DISK | TIER_GPU
SHARDS = BUCKETS
MAX_SHARED = 65_536
"""Tuples kept for sharing; when full, all are let go (keys keep theirs) and sharing starts anew."""

Placements = tuple[int, ...]

NOBODY: Placements = ()


class Shard(dict[Key, Placements]):
    """A dict that the garbage collector knows of from its beginning, so that a shell can freeze it.

    It knows of a plain one while a new tuple is in it, and then reads all of it with each collection of the young: at
    4 M keys this took a third of the leader's time, in pauses of up to half a second.
    """

    __slots__ = ()


class Holder:
    """One version of one worker's claims."""

    __slots__ = ("alone", "copies", "digests", "id", "node")

    def __init__(self, number: int, node: str) -> None:
        self.id = number
        self.node = node
        self.copies = 0
        self.digests = RollingDigests()
        # The tuple of a key that only this holder has, by tier mask; without a tier there is no placement.
        masks = range(1, ALL_TIERS + 1)
        self.alone: tuple[Placements, ...] = (NOBODY, *((number << TIER_BITS | mask,) for mask in masks))


class Ownership:
    """Key to placements. All times are per change or per key asked, whatever the size of the index."""

    def __init__(self) -> None:
        self._shards = [Shard() for _ in range(SHARDS)]
        self._holders: dict[int, Holder] = {}
        self._shown: dict[int, Holder] = {}
        self._shared: dict[Placements, Placements] = {}
        self._next_holder = 1
        self._unswept = 0

    def open(self, node: str) -> Holder:
        """A new, empty holder that nobody sees yet."""
        holder = Holder(self._next_holder, node)
        self._next_holder += 1
        self._holders[holder.id] = holder
        return holder

    def show(self, holder: Holder) -> None:
        """From now on the holder's placements count."""
        self._shown[holder.id] = holder

    def retire(self, holder: Holder) -> None:
        """From now on the holder's placements are nothing; their memory comes back by sweeping."""
        del self._holders[holder.id]
        self._shown.pop(holder.id, None)
        if holder.copies:
            self._unswept = SHARDS

    def apply(self, holder: Holder, changes: Iterable[Change]) -> None:
        """Set the holder's tiers of each key, in order; tiers 0 removes it."""
        shards = self._shards
        own = holder.id
        flip = holder.digests.flip
        for change in changes:
            key = change.key
            shard = shards[key[0]]
            tiers = change.tiers & ALL_TIERS
            alone = holder.alone[tiers]
            held = shard.get(key, NOBODY)
            if not held:
                if alone:
                    shard[key] = alone
                    holder.copies += 1
                    flip(key, tiers)
            elif len(held) == 1 and held[0] >> TIER_BITS == own:
                flip(key, (held[0] & ALL_TIERS) ^ tiers)
                if alone:
                    shard[key] = alone
                else:
                    del shard[key]
                    holder.copies -= 1
            else:
                self._merge(shard, key, held, holder, alone)

    def replace(self, holder: Holder, piece: Replacement) -> None:
        """Set what the holder has of a piece of a bucket, all of it: what is not in it is not held."""
        kept = {change.key for change in piece.changes}
        own = holder.id
        extra = [
            Change(key, 0, 0, 0, 0)
            for key, held in self._shards[piece.bucket].items()
            if piece.first <= key[1] <= piece.last
            and key not in kept
            and any(placement >> TIER_BITS == own for placement in held)
        ]
        self.apply(holder, extra)
        self.apply(holder, piece.changes)

    def placements(self, key: Key) -> Placements:
        """All placements of a key, those of holders that are not shown among them."""
        return self._shards[key[0]].get(key, NOBODY)

    def node_of(self, holder: int) -> str | None:
        """The node of a holder that is shown, else None."""
        shown = self._shown.get(holder)
        return shown.node if shown else None

    def where(self, key: Key) -> list[tuple[str, int]]:
        """(node, tiers) of each shown holder of the key."""
        return [
            (self._shown[placement >> TIER_BITS].node, placement & ALL_TIERS)
            for placement in self.placements(key)
            if placement >> TIER_BITS in self._shown
        ]

    def sweep(self, budget: int) -> None:
        """Look at about `budget` keys (whole dicts) for placements of retired holders and drop them."""
        while self._unswept and budget > 0:
            self._unswept -= 1
            shard = self._shards[self._unswept]
            budget -= len(shard) + 1
            for key, kept in self._changed_by_sweeping(shard):
                if kept:
                    shard[key] = self._share(kept)
                else:
                    del shard[key]

    @property
    def swept(self) -> bool:
        """True once nothing is left of retired holders."""
        return not self._unswept

    @property
    def keys(self) -> int:
        """Distinct keys, those of holders not shown or not yet swept among them."""
        return sum(map(len, self._shards))

    @property
    def copies(self) -> int:
        """Shown placements."""
        return sum(holder.copies for holder in self._shown.values())

    def entries(self) -> Iterator[tuple[Key, Placements]]:
        """Everything, for checks."""
        for shard in self._shards:
            yield from shard.items()

    def holders(self) -> tuple[dict[int, Holder], dict[int, Holder]]:
        """All holders and those shown, by number, for checks."""
        return self._holders, self._shown

    def _merge(self, shard: Shard, key: Key, held: Placements, holder: Holder, alone: Placements) -> None:
        """The general case of `apply`: others have the key too, or remains of a retired holder are there."""
        # No step of Python for each of the others: a common prompt may be held by all workers.
        start = bisect_left(held, holder.id << TIER_BITS)
        end = start + (start < len(held) and held[start] >> TIER_BITS == holder.id)
        holder.copies += len(alone) - (end - start)
        for placement in (*held[start:end], *alone):
            holder.digests.flip(key, placement & ALL_TIERS)
        after = held[:start] + alone + held[end:]
        if self._unswept:
            after = self._of_known_holders(after)
        if after:
            shard[key] = self._share(after)
        else:
            del shard[key]

    def _changed_by_sweeping(self, shard: Shard) -> list[tuple[Key, Placements]]:
        """Keys with a placement of a retired holder, and what is left of them. Shared tuples are looked at once."""
        kept: dict[int, Placements] = {}
        found = []
        for key, held in shard.items():
            left = kept.get(id(held))
            if left is None:
                left = kept[id(held)] = self._of_known_holders(held)
            if len(left) != len(held):
                found.append((key, left))
        return found

    def _of_known_holders(self, held: Placements) -> Placements:
        return tuple(p for p in held if p >> TIER_BITS in self._holders)

    def _share(self, placements: Placements) -> Placements:
        if len(placements) == 1:
            (placement,) = placements
            return self._holders[placement >> TIER_BITS].alone[placement & ALL_TIERS]
        if len(self._shared) >= MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(placements, placements)
