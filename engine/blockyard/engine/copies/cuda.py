"""Copies between CUDA tensors and the pool, on a stream of their own.

Owns the stream, the staging of an area on the device, and the pool's registration with CUDA. Scattered pages
are gathered on the device, where that is nearly free, so that an area crosses the bus in one piece. Until the
pool is registered, the driver takes each copy through a buffer of its own, which is right but slower.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import torch

from blockyard.engine.copies.base import GroupPages, LayoutRefused, PagedTensor, check_range, check_tensor
from blockyard.engine.copies.elements import widest
from blockyard.engine.copies.page_tables import wait_resident
from blockyard.engine.jobs import BlockRange

REGISTER_PIECE = 16 << 30
"""Bytes registered in one call. A multiple of every slab size, so no area lies across two pieces; one call for 64 GiB
and more stalls a machine for long.
"""

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
            for piece in self._pieces(blocks, offset):
                for rows, room in piece.pages:
                    torch.index_select(rows, 0, piece.index, out=room)
                piece.host.copy_(piece.staged, non_blocking=True)
                copied += piece.staged.numel()
        return copied

    def load(self, offset: int, blocks: BlockRange) -> int:
        """Start copying pages of the area at `offset` to device blocks; bytes."""
        copied = 0
        with torch.cuda.stream(self._stream):
            for piece in self._pieces(blocks, offset):
                piece.staged.copy_(piece.host, non_blocking=True)
                for rows, room in piece.pages:
                    rows.index_copy_(0, piece.index, room)
                copied += piece.staged.numel()
        return copied

    def _pieces(self, blocks: BlockRange, offset: int) -> Iterator[_Piece]:
        """What crosses the bus in one piece: a whole chunk, or of a part of one each tensor's pages.

        Staged memory is the stream's own, so it is given out anew only behind the copies that use it.
        """
        group = self._groups[blocks.group]
        check_range(blocks, group)
        count = len(blocks.block_ids)
        index = torch.tensor(blocks.block_ids).to(self._device)
        whole = count == group.blocks_per_chunk
        for start, tensors in _spans(group, whole):
            first = offset + start + (0 if whole else blocks.first_page * tensors[0].page_bytes)
            size = count * sum(paged.page_bytes for paged in tensors)
            staged = torch.empty(size, dtype=torch.int8, device=self._device)
            yield _Piece(self._pool.narrow(0, first, size), staged, list(_pages(tensors, staged, count)), index)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes in the pool, as many on the device, and for each tensor its rows with their part of the latter.

    `index` names the rows that are concerned.
    """

    host: Any
    staged: Any
    pages: list[tuple[Any, Any]]
    index: Any


def _spans(group: GroupPages, whole: bool) -> Iterator[tuple[int, Sequence[PagedTensor]]]:
    """Where in an area which tensors' pages begin: all of them as one span, or each for itself."""
    if whole:
        yield 0, group.tensors
        return
    start = 0
    for paged in group.tensors:
        yield start, (paged,)
        start += group.blocks_per_chunk * paged.page_bytes


def _pages(tensors: Sequence[PagedTensor], staged: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """Each tensor as rows of its widest element, and `count` rows of room in the same element."""
    start = 0
    for paged in tensors:
        size = paged.page_bytes
        _, element = widest(paged, start)
        room = staged.narrow(0, start, count * size).view(count, size).view(element)
        yield paged.tensor[:, :size].view(element), room
        start += count * size


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
