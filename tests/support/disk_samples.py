"""Extents for tests: shapes, keys and payloads that follow from small numbers."""

from __future__ import annotations

import hashlib

import xxhash

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.format.values import NO_SALT, Extent, Shape

UUID = bytes(range(16))
OTHER_UUID = bytes(range(16, 32))


def digest(*words: object) -> bytes:
    return hashlib.blake2b(repr(words).encode(), digest_size=32).digest()


def shape(*, areas: int = 2, area_bytes: int = PAGE + 100, world: int = 0, group: int = 0) -> Shape:
    return Shape(digest("world", world), "a-model", group, 256, 0, 1, areas, area_bytes)


def extent(number: int = 0, *, of: Shape | None = None, segment: int = 7, offset: int = PAGE) -> Extent:
    return Extent(digest("key", number), NO_SALT, of or shape(), segment, offset, number + 1)


def payload(key: bytes, of: Shape) -> list[memoryview]:
    """What the chunk of this key holds: its areas, padded to whole pages."""
    found = []
    for area in range(of.areas):
        memory = aligned(of.stride)
        memory[:] = hashlib.shake_128(key + bytes([area])).digest(of.stride)
        found.append(memory)
    return found


def empty_areas(of: Shape) -> list[memoryview]:
    return [aligned(of.stride) for _ in range(of.areas)]


def checksums(areas: list[memoryview], of: Shape) -> tuple[int, ...]:
    return tuple(xxhash.xxh3_64_intdigest(area[: of.area_bytes]) for area in areas)
