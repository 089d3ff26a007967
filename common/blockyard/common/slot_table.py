"""Layout of the slot table: what an engine may know about the host pool without asking.

The table is a memfd written by the worker alone and mapped read-only by engines. Owns the layout and the order in
which words are written; must never know why a slot changes.

    header (4 KiB)   64-bit words: magic, version, boot id (two words), slots, record bytes, pool bytes, slab bytes
    record (256 B)   32 words per slot:
        0 generation      changes whenever the slot's owner does; read before and after a copy
        1 state           SlotState in the low byte, areas (ranks of this node) in bits 16..31
        2 offset          of the slot in the pool, bytes
        3 slot bytes      capacity
        4 area stride     distance of two ranks' areas, a multiple of 4 KiB
        5 area bytes      payload of one rank's area
        6 part mask       bit r: rank r's area is filled
        7 checked         1 when words 16.. hold the areas' checksums
        8-11 key          the chunk's key
        16-31 checksums   xxh3-64 of each rank's area payload

Words are written one by one as aligned 64-bit stores, the generation first: a reader that finds the generation it was
given both before and after its copy has copied the bytes of the owner it asked for. That relies on other processes
seeing the stores in the order they were made (STORES_IN_ORDER).
"""

from enum import IntEnum
from typing import NamedTuple

MAGIC = int.from_bytes(b"BYSLOTS1", "little")
VERSION = 1
HEADER_BYTES = 4096
RECORD_BYTES = 256
RECORD_WORDS = RECORD_BYTES // 8
PAGE = 4096
STORES_IN_ORDER = frozenset({"x86_64", "AMD64"})
"""Machines, by platform.machine(), that promise this; elsewhere a barrier would be needed that Python cannot give."""

_HEADER_WORDS = HEADER_BYTES // 8
_CHECKSUMS = 16


class SlotState(IntEnum):
    """What a slot's record says of it."""

    FREE = 0
    FILLING = 1
    READY = 2
    DOOMED = 3


class TableHeader(NamedTuple):
    """First words of a table; sizes in bytes."""

    boot_id: bytes
    slots: int
    pool_bytes: int
    slab_bytes: int


class SlotRecord(NamedTuple):
    """One slot as the table shows it. `checksums` is empty until they stand."""

    generation: int
    state: SlotState
    areas: int
    offset: int
    slot_bytes: int
    area_stride: int
    area_bytes: int
    part_mask: int
    key: bytes
    checksums: tuple[int, ...]


def table_bytes(slots: int) -> int:
    """Size in bytes of a table for `slots` slots."""
    return HEADER_BYTES + slots * RECORD_BYTES


def align_page(size: int) -> int:
    """`size` rounded up to whole pages of 4 KiB."""
    return (size + PAGE - 1) // PAGE * PAGE


def write_header(words: memoryview, header: TableHeader) -> None:
    """Write the header; `words` is the whole table cast to 'Q'."""
    low, high = header.boot_id[:8], header.boot_id[8:16]
    values = (
        MAGIC,
        VERSION,
        int.from_bytes(low, "little"),
        int.from_bytes(high, "little"),
        header.slots,
        RECORD_BYTES,
        header.pool_bytes,
        header.slab_bytes,
    )
    for index, value in enumerate(values):
        words[index] = value


def read_header(words: memoryview) -> TableHeader:
    """Header of a mapped table; raises ValueError naming what is wrong with it."""
    if words[0] != MAGIC:
        raise ValueError(f"slot table magic is {words[0]:#x}, expected {MAGIC:#x}")
    if words[1] != VERSION or words[5] != RECORD_BYTES:
        raise ValueError(
            f"slot table version {words[1]} with records of {words[5]} bytes, "
            f"expected version {VERSION} with {RECORD_BYTES}"
        )
    boot = int(words[2]).to_bytes(8, "little") + int(words[3]).to_bytes(8, "little")
    return TableHeader(boot, words[4], words[6], words[7])


def write_record(words: memoryview, slot: int, record: SlotRecord) -> None:
    """Write one slot's record, generation first."""
    base = _HEADER_WORDS + slot * RECORD_WORDS
    words[base] = record.generation
    words[base + 7] = 0
    words[base + 2] = record.offset
    words[base + 3] = record.slot_bytes
    words[base + 4] = record.area_stride
    words[base + 5] = record.area_bytes
    words[base + 6] = record.part_mask
    for i in range(4):
        words[base + 8 + i] = int.from_bytes(record.key[8 * i : 8 * i + 8], "little")
    for i, checksum in enumerate(record.checksums):
        words[base + _CHECKSUMS + i] = checksum
    words[base + 1] = record.state | record.areas << 16
    if record.checksums:
        words[base + 7] = 1


def read_generation(words: memoryview, slot: int) -> int:
    """Current generation of a slot."""
    return int(words[_HEADER_WORDS + slot * RECORD_WORDS])


def read_checksum(words: memoryview, slot: int, area: int) -> int | None:
    """Checksum of one rank's area, or None while it does not stand yet."""
    base = _HEADER_WORDS + slot * RECORD_WORDS
    return int(words[base + _CHECKSUMS + area]) if words[base + 7] else None


def read_record(words: memoryview, slot: int) -> SlotRecord:
    """One slot's record. Not atomic: the caller compares generations around it."""
    base = _HEADER_WORDS + slot * RECORD_WORDS
    state_word = words[base + 1]
    areas = state_word >> 16
    key = b"".join(int(words[base + 8 + i]).to_bytes(8, "little") for i in range(4))
    checksums = tuple(int(words[base + _CHECKSUMS + i]) for i in range(areas)) if words[base + 7] else ()
    return SlotRecord(
        generation=words[base],
        state=SlotState(state_word & 0xFF),
        areas=areas,
        offset=words[base + 2],
        slot_bytes=words[base + 3],
        area_stride=words[base + 4],
        area_bytes=words[base + 5],
        part_mask=words[base + 6],
        key=key,
        checksums=checksums,
    )
