"""The host pool and its slot table: two memfds whose sizes are sealed.

Owns the memory, its descriptors and the writing of slot records. Must never know why a slot changes, nor what
an engine is. Every byte range is checked here: a wrong offset must not become a read of someone else's slot.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from types import TracebackType

import xxhash

from blockyard.common.slot_table import SlotRecord, TableHeader, read_record, table_bytes, write_header, write_record

# Not in Python 3.11's fcntl: no new writable mapping, existing ones stay.
_F_SEAL_FUTURE_WRITE = 0x0010
_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SealedMemory:
    """One memfd of fixed size, mapped for writing here. Others get the descriptor, never a name."""

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _FIXED_SIZE)
            self.map = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self.map)

    def refuse_other_writers(self) -> None:
        """Whoever gets the descriptor can only read; kernels before 5.1 cannot promise that."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)

    def close(self) -> None:
        """Unmap and close; the memory lives on while an engine maps it.

        A system call that hangs on a broken disk still has a part of it: that stays mapped until the process ends.
        """
        self.view.release()
        with contextlib.suppress(BufferError):
            self.map.close()
        os.close(self.fd)


class HostPool:
    """The pool's bytes and the table that says what they are."""

    def __init__(self, boot_id: bytes, pool_bytes: int, slab_bytes: int, slots: int) -> None:
        self.slots = slots
        self.memory = SealedMemory("blockyard-pool", pool_bytes)
        self.table = SealedMemory("blockyard-slots", table_bytes(slots))
        self.table.refuse_other_writers()
        self._words = self.table.view.cast("Q")
        write_header(self._words, TableHeader(boot_id, slots, pool_bytes, slab_bytes))

    @property
    def descriptors(self) -> list[int]:
        """What a rank is given, in this order: pool, table."""
        return [self.memory.fd, self.table.fd]

    def write_slot(self, slot: int, record: SlotRecord) -> None:
        """Show engines what a slot holds from now on."""
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot is {slot}; the table has {self.slots}")
        write_record(self._words, slot, record)

    def areas(self, offset: int, areas: int, stride: int) -> list[memoryview]:
        """Each rank's area of the slot at `offset`, in whole pages; release them before the pool is closed."""
        if offset < 0 or areas < 1 or stride < 1 or offset + areas * stride > self.memory.size:
            raise ValueError(
                f"{areas} areas of {stride} bytes at {offset} do not lie in a pool of {self.memory.size} bytes"
            )
        starts = (offset + area * stride for area in range(areas))
        return [self.memory.view[start : start + stride] for start in starts]

    def shown_checksums(self, slot: int, generation: int) -> tuple[int, ...] | None:
        """What the table says of a slot; None when it has another owner by now, or none stand there."""
        record = read_record(self._words, slot)
        return record.checksums if record.generation == generation and record.checksums else None

    def checksums(self, offset: int, areas: int, stride: int, area_bytes: int) -> tuple[int, ...]:
        """xxh3-64 of each rank's area of the slot at `offset`."""
        end = offset + (areas - 1) * stride + area_bytes
        if offset < 0 or areas < 1 or area_bytes < 0 or stride < area_bytes or end > self.memory.size:
            raise ValueError(
                f"{areas} areas of {area_bytes} bytes, {stride} apart, at {offset} "
                f"do not lie in a pool of {self.memory.size} bytes"
            )
        starts = (offset + area * stride for area in range(areas))
        return tuple(xxhash.xxh3_64_intdigest(self.memory.view[start : start + area_bytes]) for start in starts)

    def close(self) -> None:
        """Unmap both; the caller has stopped whoever reads or fills them, as far as that can be done."""
        self._words.release()
        self.table.close()
        self.memory.close()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
