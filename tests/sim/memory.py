"""A worker's pool and slot table in memory. Owns what the pages really hold, whatever any book says.

The slot table is written and read by the production functions. A page of the pool is not 4096 bytes but a tag: whose
area was last written there. So a slot that is reused under a reader really changes under it.
"""

from __future__ import annotations

import xxhash

from blockyard.common import slot_table
from blockyard.common.slot_table import PAGE, SlotRecord, TableHeader

Tag = bytes


def tag(key: bytes, rank: int, page: int) -> Tag:
    """What page `page` of this rank's area of a chunk holds when it was stored rightly."""
    return key + bytes([rank, page])


class Memory:
    """It outlives its worker in the eyes of whoever has mapped it."""

    def __init__(self, boot_id: bytes, slots: int, pool_bytes: int, slab_bytes: int) -> None:
        self.boot_id = boot_id
        self.pages: list[Tag] = [b""] * (pool_bytes // PAGE)
        self._table = bytearray(slot_table.table_bytes(slots))
        self.words = memoryview(self._table).cast("Q")
        slot_table.write_header(self.words, TableHeader(boot_id, slots, pool_bytes, slab_bytes))
        self.copying: dict[int, int] = {}
        """Copies that really touch each slot now."""
        self.rotten: set[int] = set()
        """First pages of areas whose bytes were spoilt on purpose."""
        self.distrusted: set[int] = set()
        """Slots that a rank loads from whose death was reported although it lives: generations alone protect it."""

    def write(self, slot: int, record: SlotRecord) -> None:
        slot_table.write_record(self.words, slot, record)

    def record(self, slot: int) -> SlotRecord:
        return slot_table.read_record(self.words, slot)

    def generation(self, slot: int) -> int:
        return slot_table.read_generation(self.words, slot)

    def checksum(self, slot: int, rank: int) -> int | None:
        return slot_table.read_checksum(self.words, slot, rank)

    def hash_area(self, offset: int, area_bytes: int) -> int:
        first = offset // PAGE
        return xxhash.xxh3_64_intdigest(b"".join(self.pages[first : first + area_bytes // PAGE]))

    def holds(self, offset: int, area_bytes: int, key: bytes, rank: int) -> bool:
        """Whether an area holds what this rank stored under this key, whole."""
        first = offset // PAGE
        return all(self.pages[first + i] == tag(key, rank, i) for i in range(area_bytes // PAGE))

    def begin_copy(self, slot: int) -> None:
        self.copying[slot] = self.copying.get(slot, 0) + 1

    def end_copy(self, slot: int) -> None:
        self.copying[slot] -= 1
        if not self.copying[slot]:
            del self.copying[slot]
            self.distrusted.discard(slot)
