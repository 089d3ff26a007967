"""The worker's memory as this process sees it: the pool, writable, and the slot table, read-only.

Owns the mappings and the checks of their sizes. Must never outlive its session: the client closes a map
before it attaches again, so that two pools are never mapped at once.
"""

import fcntl
import mmap
import os

from blockyard.common.errors import BlockyardError
from blockyard.common.messages.attach import Welcome
from blockyard.common.slot_table import read_checksum, read_generation, read_header, table_bytes

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class MapRefused(BlockyardError):
    """The descriptors are not what the worker's Welcome says of them."""


class PoolMap:
    """Maps both descriptors and closes them, whatever happens."""

    def __init__(self, pool_descriptor: int, table_descriptor: int, welcome: Welcome) -> None:
        maps: list[mmap.mmap] = []
        try:
            _check_size("pool", pool_descriptor, welcome.pool_bytes)
            _check_size("slot table", table_descriptor, welcome.table_bytes)
            maps.append(mmap.mmap(pool_descriptor, welcome.pool_bytes))
            maps.append(mmap.mmap(table_descriptor, welcome.table_bytes, prot=mmap.PROT_READ))
            self._maps = maps
            self.pool = memoryview(maps[0])
            self._words = memoryview(maps[1]).cast("Q")
            self.slots = self._check_header(welcome)
        except (OSError, ValueError, BlockyardError) as error:
            self._release()
            for mapped in maps:
                mapped.close()
            raise MapRefused(f"worker's memory cannot be used: {error}") from error
        finally:
            os.close(pool_descriptor)
            os.close(table_descriptor)

    def generation(self, slot: int) -> int:
        """Current generation of a slot."""
        return read_generation(self._words, slot)

    def checksum(self, slot: int, area: int) -> int | None:
        """Checksum of a rank's area, None while it does not stand."""
        return read_checksum(self._words, slot, area)

    def close(self) -> None:
        """Unmap; whoever holds a view of the pool must have dropped it."""
        self._release()
        for mapped in self._maps:
            mapped.close()

    def _release(self) -> None:
        for name in ("pool", "_words"):
            view = getattr(self, name, None)
            if view is not None:
                view.release()

    def _check_header(self, welcome: Welcome) -> int:
        header = read_header(self._words)
        if header.boot_id != welcome.boot_id:
            raise MapRefused("slot table is of another start of the worker")
        if header.pool_bytes != welcome.pool_bytes:
            raise MapRefused(f"slot table is for a pool of {header.pool_bytes} bytes, not {welcome.pool_bytes}")
        if table_bytes(header.slots) > welcome.table_bytes:
            raise MapRefused(f"slot table of {welcome.table_bytes} bytes is too short for {header.slots} slots")
        return header.slots


def _check_size(name: str, descriptor: int, expected: int) -> None:
    """A sealed size can be trusted for as long as it is mapped; an unsealed one may end in SIGBUS."""
    size = os.fstat(descriptor).st_size
    if size != expected:
        raise MapRefused(f"{name} has {size} bytes, the worker said {expected}")
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if seals & _SIZE_SEALS != _SIZE_SEALS:
        raise MapRefused(f"{name} is not sealed against a change of size (seals {seals:#x})")
