"""A worker's pool and slot table, opened from outside: to look at them, and to spoil a byte on purpose."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from blockyard.common.slot_table import SlotRecord, SlotState, read_header, read_record


class OpenedPool:
    """`with OpenedPool(worker.pid) as pool:` maps the memory of a running worker by its descriptors."""

    def __init__(self, pid: int) -> None:
        self._maps = {}
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except FileNotFoundError:
                continue  # closed since it was listed
            if target.startswith("/memfd:"):
                # The table is sealed against any further writer; the pool is the engines' to write.
                name = "table" if "slots" in target else "pool"
                self._maps[name] = _mapped(link, writable=name == "pool")
        self._words = memoryview(self._maps["table"]).cast("Q")

    def __enter__(self) -> OpenedPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.release()
        for mapped in self._maps.values():
            mapped.close()

    def records(self) -> Iterator[SlotRecord]:
        """Records of all slots."""
        return (read_record(self._words, slot) for slot in range(read_header(self._words).slots))

    def ready(self) -> list[SlotRecord]:
        """Records of the slots that hold a chunk anyone may load."""
        return [record for record in self.records() if record.state is SlotState.READY]

    def checked(self) -> bool:
        """Whether every ready slot's checksums stand."""
        return all(record.checksums for record in self.ready())

    def bytes_at(self, offset: int, size: int) -> bytes:
        """What the pool holds; looking at a page that nobody has touched takes memory for it."""
        return self._maps["pool"][offset : offset + size]

    def flip(self, record: SlotRecord, byte: int = 0, mask: int = 0x40) -> None:
        """Change bits of one stored byte."""
        at = record.offset + byte
        self._maps["pool"][at] ^= mask


def _mapped(link: Path, writable: bool) -> mmap.mmap:
    descriptor = os.open(link, os.O_RDWR if writable else os.O_RDONLY)
    try:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=access)
    finally:
        os.close(descriptor)
