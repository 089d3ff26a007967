"""Copies between CUDA tensors and the pool, on a stream of their own.

Owns the stream, the staging of an area on the device, and the pool's registration with CUDA. Scattered pages
are gathered on the device, where that is nearly free, so that an area crosses the bus in one piece. Until the
pool is registered, copies are right but slower.
"""

import logging
from threading import Event, Thread
from typing import Any

import torch

from blockyard.engine.copies.base import GroupPages, LayoutRefused, check_range, check_tensor
from blockyard.engine.copies.elements import widest
from blockyard.engine.copies.page_tables import wait_resident
from blockyard.engine.jobs import BlockRange

REGISTER_PIECE = 64 << 30
"""Bytes registered in one call. A multiple of every slab size, so no area lies across two pieces."""

_PORTABLE = 1

log = logging.getLogger(__name__)


class CudaCopier:
    """DeviceCopier for tensors on one CUDA device."""

    def __init__(self, groups: list[GroupPages]) -> None:
        devices = {paged.tensor.device for group in groups for paged in group.tensors}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            raise LayoutRefused(f"expected tensors on one CUDA device, got {sorted(map(str, devices))}")
        for group in groups:
            for paged in group.tensors:
                check_tensor(paged)
        self._groups = {group.group: group for group in groups}
        self._device = next(iter(devices))
        self._stream = torch.cuda.Stream(self._device)
        self._registration: _Registration | None = None
        self._pool: Any = None

    def area_bytes(self, group: int) -> int:
        """Bytes of one area of a group."""
        return self._groups[group].area_bytes

    def bind(self, pool: memoryview) -> None:
        """Use this pool from now on; it is registered in the background."""
        self._pool = torch.frombuffer(pool, dtype=torch.int8)
        self._registration = _Registration(self._pool.data_ptr(), len(pool), self._device)

    def unbind(self) -> None:
        """Drop every reference to the pool and its registration."""
        if self._registration is not None:
            self._registration.undo()
            self._registration = None
        self._pool = None

    def fence(self) -> Any:
        """An event after all that the engine has given its current stream."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def begin(self, fence: Any) -> None:
        """Let the copies that follow wait for `fence`."""
        torch.cuda.set_device(self._device)
        if fence is not None:
            self._stream.wait_event(fence)

    def finish(self) -> None:
        """Wait until the stream is idle, without holding the interpreter."""
        self._stream.synchronize()

    def store(self, blocks: BlockRange, offset: int) -> int:
        """Start copying device pages to the area at `offset`; bytes."""
        copied = 0
        with torch.cuda.stream(self._stream):
            for host, staged, rows, index in self._pieces(blocks, offset):
                torch.index_select(rows, 0, index, out=staged.view(rows.dtype))
                host.copy_(staged, non_blocking=True)
                copied += staged.numel()
        return copied

    def load(self, offset: int, blocks: BlockRange) -> int:
        """Start copying pages of the area at `offset` to device blocks; bytes."""
        copied = 0
        with torch.cuda.stream(self._stream):
            for host, staged, rows, index in self._pieces(blocks, offset):
                staged.copy_(host, non_blocking=True)
                rows.index_copy_(0, index, staged.view(rows.dtype))
                copied += staged.numel()
        return copied

    def _pieces(self, blocks: BlockRange, offset: int) -> Any:
        """Per tensor: its pages in the pool, room for them on the device, the rows of all blocks, and which
        ones.
        """
        group = self._groups[blocks.group]
        check_range(blocks, group)
        count = len(blocks.block_ids)
        index = torch.tensor(blocks.block_ids).to(self._device)
        start = offset
        for paged in group.tensors:
            size = paged.page_bytes
            first = start + blocks.first_page * size
            host = self._pool.narrow(0, first, count * size).view(count, size)
            staged = torch.empty((count, size), dtype=torch.int8, device=self._device)
            _, element = widest(paged, 0)
            yield host, staged, paged.tensor[:, :size].view(element), index
            start += group.blocks_per_chunk * size


class _Registration:
    """Registers a mapping piece by piece in a thread of its own; `undo` must come before the mapping goes."""

    def __init__(self, address: int, size: int, device: Any) -> None:
        self._address = address
        self._size = size
        self._device = device
        self._registered: list[int] = []
        self._stop = Event()
        self._thread = Thread(target=self._register, name="blockyard-register", daemon=True)
        self._thread.start()

    def undo(self) -> None:
        """Unregister all pieces; waits for the one in progress."""
        self._stop.set()
        self._thread.join()
        for address in self._registered:
            torch.cuda.cudart().cudaHostUnregister(address)

    def _register(self) -> None:
        torch.cuda.set_device(self._device)
        for start in range(0, self._size, REGISTER_PIECE):
            size = min(REGISTER_PIECE, self._size - start)
            # Registering pins pages, so it follows the worker, whose memory they are.
            if not wait_resident(self._address + start, size, self._stop):
                return
            failure = torch.cuda.cudart().cudaHostRegister(self._address + start, size, _PORTABLE)
            if int(failure) != 0:
                log.warning("blockyard: pool not registered with CUDA (%s); copies are slower", failure)
                return
            self._registered.append(self._address + start)
