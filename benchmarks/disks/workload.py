"""What all subjects write and read, and what is told of each pass. Owns the sizes."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from blockyard.worker.disk.format.values import Shape

WRITERS = 2
READERS = 4
"""Threads of a directory as they are by default: all of them may read, half of them may write."""

SLOTS = 128
"""In memory: as many chunks are written from one half of them as are read into the other."""


@dataclass(frozen=True)
class Workload:
    """`chunks` extents of one area each, direct if the file system takes it.

    All subjects use one folder and random bytes: how fast a device writes may depend on where a file comes to lie, and
    on what is written.
    """

    folder: Path
    chunks: int
    chunk_bytes: int
    direct: bool

    @property
    def shape(self) -> Shape:
        return Shape(b"f" * 32, "bench", 0, 256, 0, 1, 1, self.chunk_bytes)

    @property
    def extent_bytes(self) -> int:
        """Of each write and each read: a header page and the chunk."""
        return self.shape.extent_bytes

    @property
    def total_bytes(self) -> int:
        return self.chunks * self.extent_bytes


class Pass(NamedTuple):
    """All chunks written, or read, once."""

    wall: float
    cpu: float


class Subject(Protocol):
    """Writes all, then reads all, then gives the space back."""

    def write(self) -> Awaitable[Pass]: ...

    def read(self) -> Awaitable[Pass]: ...

    def clear(self) -> Awaitable[None]: ...
