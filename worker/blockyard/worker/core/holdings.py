"""The chunks this worker holds, and all that has to move with one: key index, slot, slot table, eviction
order, ghosts, story, and what the leader is told.

Owns that these never disagree. Must never know sessions, jobs' owners or time. Every method leaves the books
balanced, and every change of a chunk's state goes through the table in chunks.py.
"""

from collections.abc import Callable, Iterable, Iterator

from blockyard.common.identity import Key
from blockyard.common.messages.cluster import TIER_DISK, TIER_HOST
from blockyard.common.messages.states import KeyState
from blockyard.common.metrics.counters import Counters
from blockyard.common.slot_table import SlotRecord, SlotState
from blockyard.worker.core.chunks import Chunk, ChunkEvent, ChunkState, next_state
from blockyard.worker.core.disk.queue import SpillQueue
from blockyard.worker.core.ghosts import Ghosts
from blockyard.worker.core.instructions import ComputeChecksum, Instruction, WriteSlot
from blockyard.worker.core.outbox import Outbox
from blockyard.worker.core.room import Room
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass, Slab, SlotPool
from blockyard.worker.core.story import Story, Transition
from blockyard.worker.core.worlds import WorldBook

MAX_LINEAGE = 4096
"""Ancestors of a chunk that are followed: more than a request has chunks, and an end to a loop of parents."""

_NO_KEY = bytes(32)


class Holdings:
    """`step` is the machine's count of events; `emit` takes the instructions that a change needs."""

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        worlds: WorldBook,
        outbox: Outbox,
        emit: Callable[[Instruction], None],
    ) -> None:
        self._counters = counters
        self._worlds = worlds
        self._outbox = outbox
        self._emit = emit
        self.pool = SlotPool(settings)
        self.ghosts = Ghosts(settings.max_ghosts)
        self.story = Story(settings.max_story)
        self.spills = SpillQueue(settings.disk)
        self.index: dict[Key, Chunk] = {}
        """Chunks that are filling or ready."""
        self.owners: dict[int, Chunk] = {}
        """Slots that are not free, and whose they are."""
        self.slots = [0, 0, 0, 0]
        """Slots by ChunkState; the first (absent) is not kept."""
        self.bytes = [0, 0, 0, 0]
        self._room = Room(self.pool, worlds, self.index, self.owners)
        self.unchecked = 0
        """Ready chunks without a checksum."""
        self.step = 0

    def reserve(self, key: Key, parent: Key, size_class: SizeClass, engine: str) -> Chunk | None:
        """Bind a slot to an absent key, evicting if need be; None when everything is in use."""
        place = self.pool.take(size_class) or self._make_room(size_class)
        if place is None:
            return None
        chunk = Chunk(key, parent, size_class, engine)
        chunk.slab, chunk.slot = place
        chunk.offset = self.pool.offset(*place)
        chunk.generation = self.pool.next_generation()
        self.index[key] = chunk
        self.owners[chunk.slot] = chunk
        self._move(chunk, ChunkEvent.RESERVED)
        self._write(chunk)
        self._touch_slab(chunk)
        return chunk

    def filled(self, chunks: list[Chunk]) -> None:
        """These chunks are whole and can be seen. They are in the order of their request, root first."""
        for chunk in reversed(chunks):
            self.unchecked += 1
            self._enter(chunk)
            self._write(chunk)
            size_class = chunk.size_class
            self._emit(
                ComputeChecksum(
                    chunk.slot,
                    chunk.generation,
                    chunk.offset,
                    size_class.area_bytes,
                    size_class.areas,
                    size_class.area_stride,
                )
            )
        committed = {chunk.key for chunk in chunks}
        for chunk in chunks:
            if chunk.parent not in committed:
                self.touch(self.lineage(chunk.parent, chunk.size_class), asked=False)

    def promoted(self, chunk: Chunk, checksums: tuple[int, ...]) -> None:
        """A chunk was read from disk or a peer, and is what its checksums say."""
        chunk.parts = chunk.size_class.all_parts
        chunk.checked, chunk.checksums = True, checksums
        self._enter(chunk)
        self._write(chunk, checksums)
        self.tell(chunk.key, chunk.size_class)
        self.spills.consider(chunk)

    def _enter(self, chunk: Chunk) -> None:
        """A chunk is ready."""
        self._move(chunk, ChunkEvent.FILLED)
        chunk.size_class.policy.insert(chunk.key)
        self._touch_slab(chunk)
        self.ghosts.forget(chunk.key)

    def checked(self, slot: int, generation: int, checksums: tuple[int, ...]) -> None:
        """The checksums of a slot are known. Outdated and repeated news changes nothing."""
        chunk = self._unchecked_owner(slot, generation)
        if chunk is None:
            return
        if len(checksums) != chunk.size_class.areas:
            self.quarantine(chunk)
            return
        self.unchecked -= 1
        chunk.checked, chunk.checksums = True, checksums
        self._write(chunk, checksums)
        self.tell(chunk.key, chunk.size_class)
        self.spills.consider(chunk)

    def check_failed(self, slot: int, generation: int) -> None:
        """A chunk that cannot be verified is of no use."""
        chunk = self._unchecked_owner(slot, generation)
        if chunk is not None:
            self.quarantine(chunk)

    def abort(self, chunk: Chunk) -> None:
        """A filling chunk will not be completed."""
        del self.index[chunk.key]
        self._move(chunk, ChunkEvent.ABORTED)
        self._let_go(chunk)

    def evict(self, chunk: Chunk, reason: str) -> None:
        """Take the slot of a ready chunk that is not in use."""
        if self.spills.remove(chunk):
            self._counters.add("blockyard_worker_disk_spills_dropped_total")
        self._leave(chunk, ChunkEvent.EVICTED)
        self._counters.add("blockyard_worker_evictions_total", reason=reason)
        copy = chunk.size_class.on_disk.get(chunk.key)
        if copy is not None:
            copy.asked(chunk.hit)
        else:
            admitted = not self.spills.enabled or self.spills.admits(chunk)
            self.ghosts.add(chunk.key, KeyState.EVICTED_HOST if admitted else KeyState.NOT_ADMITTED)

    def purge(self, chunk: Chunk) -> None:
        """A ready chunk must not be given to anyone any more, though its bytes are what was stored."""
        self._leave(chunk, ChunkEvent.DROPPED)
        self._counters.add("blockyard_worker_evictions_total", reason="purge")

    def quarantine(self, chunk: Chunk) -> None:
        """A ready chunk has, or may have, bad bytes."""
        self._leave(chunk, ChunkEvent.DROPPED)
        self._counters.add("blockyard_worker_quarantined_total")
        self.ghosts.add(chunk.key, KeyState.CORRUPT)

    def use_ended(self, chunk: Chunk) -> None:
        """A pin or copier of this chunk has ended; if it is doomed and this was the last, its slot is free."""
        if chunk.state is ChunkState.DOOMED and not chunk.pins and not chunk.copiers:
            self._move(chunk, ChunkEvent.UNUSED)
            self._let_go(chunk)

    def touch(self, chunks: list[Chunk], asked: bool = True) -> None:
        """Ready chunks of one class were used by one request; root first. Not `asked`: it only goes on behind them,
        which keeps them recent, and may be the one that stored them.
        """
        if not chunks:
            return
        chunks = chunks[::-1]
        slab: Slab | None = None
        for chunk in chunks:
            chunk.used = self.step
            if asked:
                chunk.hit = self.step
            if chunk.slab is not slab:
                slab = chunk.slab
                self._touch_slab(chunk)
        chunks[0].size_class.policy.touch([chunk.key for chunk in chunks])
        self.spills.used(chunks)

    def lineage(self, key: Key, size_class: SizeClass) -> list[Chunk]:
        """The ready chunks from the root to `key`, as far as they are held without a gap; root first."""
        chain: list[Chunk] = []
        chunk = self.index.get(key)
        while chunk is not None and chunk.state is ChunkState.READY and len(chain) < MAX_LINEAGE:
            if chunk.size_class is not size_class:
                break
            chain.append(chunk)
            chunk = self.index.get(chunk.parent)
        return chain[::-1]

    def shared(self) -> Iterator[tuple[Key, SizeClass, int]]:
        """What the leader is to know of: each key once, with its class and the tiers that hold it."""
        for chunk in self.index.values():
            if chunk.checked:
                yield chunk.key, chunk.size_class, self.tiers(chunk.key, chunk.size_class)
        for size_class in self._worlds.classes():
            for key in size_class.on_disk:
                if not self._on_host(key, size_class):
                    yield key, size_class, TIER_DISK

    def tiers(self, key: Key, size_class: SizeClass) -> int:
        """Bits of the tiers that hold the key for anyone."""
        host = TIER_HOST if self._on_host(key, size_class) else 0
        return host | (TIER_DISK if key in size_class.on_disk else 0)

    def tell(self, key: Key, size_class: SizeClass) -> None:
        """The leader is to know which tiers hold the key now."""
        self._outbox.note(key, size_class, self.tiers(key, size_class))

    def _on_host(self, key: Key, size_class: SizeClass) -> bool:
        chunk = self.index.get(key)
        return chunk is not None and chunk.checked and chunk.size_class is size_class

    def _unchecked_owner(self, slot: int, generation: int) -> Chunk | None:
        chunk = self.owners.get(slot)
        if chunk is None or chunk.generation != generation or chunk.checked:
            return None
        return chunk if chunk.state is ChunkState.READY else None

    def _make_room(self, size_class: SizeClass) -> tuple[Slab, int] | None:
        """A slot that others make way for."""
        victims, reason = self._room.victims(size_class, self.step)
        for chunk in victims:
            self.evict(chunk, reason)
        return self.pool.take(size_class) if victims else None

    def _leave(self, chunk: Chunk, event: ChunkEvent) -> None:
        """A ready chunk is not ready any more."""
        del self.index[chunk.key]
        chunk.size_class.policy.remove(chunk.key)
        self.spills.remove(chunk)
        if chunk.checked:
            self.tell(chunk.key, chunk.size_class)
        else:
            self.unchecked -= 1
        self._move(chunk, event)
        self._let_go(chunk)

    def _let_go(self, chunk: Chunk) -> None:
        """Free the slot of a chunk that is absent now, or show that it is doomed."""
        if chunk.state is ChunkState.DOOMED:
            self._write(chunk)
            return
        slab = chunk.slab
        assert slab is not None
        del self.owners[chunk.slot]
        free = (0, chunk.offset, chunk.size_class.slot_bytes, 0, 0, 0, _NO_KEY, ())
        self._emit(WriteSlot(chunk.slot, SlotRecord(self.pool.next_generation(), SlotState.FREE, *free)))
        self.pool.give(slab, chunk.slot)

    def _touch_slab(self, chunk: Chunk) -> None:
        assert chunk.slab is not None
        chunk.used = self.step
        self.pool.touch(chunk.slab, self.step)

    def _move(self, chunk: Chunk, event: ChunkEvent) -> None:
        before = chunk.state
        after = next_state(before, event, chunk.pins > 0 or chunk.copiers > 0)
        chunk.state = after
        size = chunk.size_class.slot_bytes
        for state, sign in ((before, -1), (after, 1)):
            if state is not ChunkState.ABSENT:
                self.slots[state] += sign
                self.bytes[state] += sign * size
        self.story.tell(Transition(self.step, chunk.key, before, event, after, chunk.slot, chunk.generation))

    def _write(self, chunk: Chunk, checksums: Iterable[int] = ()) -> None:
        """Show the chunk in the slot table."""
        size_class = chunk.size_class
        record = SlotRecord(
            chunk.generation,
            _SHOWN[chunk.state],
            size_class.areas,
            chunk.offset,
            size_class.slot_bytes,
            size_class.area_stride,
            size_class.area_bytes,
            chunk.parts,
            chunk.key,
            tuple(checksums),
        )
        self._emit(WriteSlot(chunk.slot, record))


_SHOWN = (SlotState.FREE, SlotState.FILLING, SlotState.READY, SlotState.DOOMED)
