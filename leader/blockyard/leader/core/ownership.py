"""The ownership index: which worker holds a key, and in which tiers.

Owns the placements and their memory. Must never know links, sequence numbers or why a claim was made.

A placement is one int: holder, kind of chunk, tiers. A key's placements are a sorted tuple of them. Tuples are
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
from blockyard.common.identity import Fingerprint, Key
from blockyard.common.messages.cluster import BUCKETS, TIER_DISK, TIER_GPU, TIER_HOST, Change, Replacement
from blockyard.leader.core.kinds import KIND_BITS, UNKNOWN, ChunkKind, Kinds

TIER_BITS = 3
HOLDER_SHIFT = TIER_BITS + KIND_BITS
ALL_KINDS = (1 << KIND_BITS) - 1
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

    __slots__ = ("_alone", "_fingerprints", "_kinds", "_numbers", "copies", "digests", "id", "node")

    def __init__(self, number: int, node: str, kinds: Kinds) -> None:
        self.id = number
        self.node = node
        self.copies = 0
        self.digests = RollingDigests()
        self._kinds = kinds
        self._fingerprints: dict[int, Fingerprint] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._alone: dict[int, tuple[Placements, ...]] = {}

    def announce(self, world: int, fingerprint: Fingerprint) -> None:
        """From now on changes of this world are of this fingerprint."""
        if self._fingerprints.get(world) != fingerprint:
            self._fingerprints[world] = fingerprint
            self._numbers = {pair: number for pair, number in self._numbers.items() if pair[0] != world}

    def knows(self, fingerprint: Fingerprint) -> bool:
        """Whether this holder has announced the fingerprint."""
        return fingerprint in self._fingerprints.values()

    def alone_of(self, world: int, group: int) -> tuple[Placements, ...]:
        """The tuples of a key of this kind that only this holder has, by tier mask."""
        number = self._numbers.get((world, group))
        if number is None:
            fingerprint = self._fingerprints.get(world)
            number = UNKNOWN if fingerprint is None else self._kinds.number(ChunkKind(fingerprint, group))
            self._numbers[world, group] = number
        return self.alone(number)

    def alone(self, kind: int) -> tuple[Placements, ...]:
        """The same by the kind's number; without a tier there is no placement."""
        made = self._alone.get(kind)
        if made is None:
            base = self.id << HOLDER_SHIFT | kind << TIER_BITS
            made = self._alone[kind] = (NOBODY, *((base | mask,) for mask in range(1, ALL_TIERS + 1)))
        return made


class Ownership:
    """Key to placements. All times are per change or per key asked, whatever the size of the index."""

    def __init__(self) -> None:
        self.kinds = Kinds()
        self._shards = [Shard() for _ in range(SHARDS)]
        self._holders: dict[int, Holder] = {}
        self._shown: dict[int, Holder] = {}
        self._shared: dict[Placements, Placements] = {}
        self._next_holder = 1
        self._unswept = 0

    def open(self, node: str) -> Holder:
        """A new, empty holder that nobody sees yet."""
        holder = Holder(self._next_holder, node, self.kinds)
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
        world = group = -1
        of_kind: tuple[Placements, ...] = ()
        for change in changes:
            key = change.key
            shard = shards[key[0]]
            tiers = change.tiers & ALL_TIERS
            if change.world != world or change.group != group:
                world, group = change.world, change.group
                of_kind = holder.alone_of(world, group)
            alone = of_kind[tiers]
            held = shard.get(key, NOBODY)
            if not held:
                if alone:
                    shard[key] = alone
                    holder.copies += 1
                    flip(key, tiers)
            elif len(held) == 1 and held[0] >> HOLDER_SHIFT == own:
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
            and any(placement >> HOLDER_SHIFT == own for placement in held)
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

    def named(self, held: Placements) -> list[tuple[str, int]]:
        """(node, tiers) of each shown holder among these placements."""
        return [
            (self._shown[placement >> HOLDER_SHIFT].node, placement & ALL_TIERS)
            for placement in held
            if placement >> HOLDER_SHIFT in self._shown
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

    def shard(self, number: int) -> Shard:
        """The keys whose first byte is `number`, to be read only."""
        return self._shards[number]

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
        start = bisect_left(held, holder.id << HOLDER_SHIFT)
        end = start + (start < len(held) and held[start] >> HOLDER_SHIFT == holder.id)
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
        return tuple(p for p in held if p >> HOLDER_SHIFT in self._holders)

    def _share(self, placements: Placements) -> Placements:
        if len(placements) == 1:
            (placement,) = placements
            holder = self._holders[placement >> HOLDER_SHIFT]
            return holder.alone(placement >> TIER_BITS & ALL_KINDS)[placement & ALL_TIERS]
        if len(self._shared) >= MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(placements, placements)
