"""The limits that the disk tier works within. Owns the numbers and what they imply."""

from typing import Literal

import msgspec

SMALLEST_DIRECTORY = 3
"""Segments: one that is written, one that is given back, one that keeps something."""

Admission = Literal["always", "second-touch"]


class DirectorySettings(msgspec.Struct, frozen=True):
    """One directory: for people its name, and how many segments fit under its cap, each of `segment_bytes`."""

    name: str
    segments: int
    segment_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """That all segments may have together."""
        return self.segments * self.segment_bytes

    def __post_init__(self) -> None:
        if self.segments < SMALLEST_DIRECTORY:
            raise ValueError(
                f"directory {self.name} has room for {self.segments} segments of {self.segment_bytes} bytes, "
                f"must have room for {SMALLEST_DIRECTORY}"
            )


class DiskSettings(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds. Without directories there is no disk tier."""

    directories: tuple[DirectorySettings, ...] = ()
    admission: Admission = "always"
    write_rate: float = 1e9
    """Bytes a second over all directories, on average."""
    max_writing: int = 64 << 20
    """Bytes of host slots that are held for a write at a time, as far as `writing_share` allows."""
    writing_share: float = 0.25
    """Of the pool, at most, what is held for writes: a device that hangs keeps it from everybody."""
    max_reads: int = 64
    """Reads under way in one directory."""
    max_writes: int = 16
    promoting_share: float = 0.25
    """Of the pool, at most, what is being read into at a time."""
    patience: float = 5.0
    """An operation that takes longer hangs: nobody waits for it any more."""
    full_pause: float = 5.0
    """How long a directory without room is not written to, unless it makes some."""
    max_waiting: int = 1024
    """Acquires that wait for reads at a time; further ones are answered at once."""
    forward_share: float = 0.5
    """Of the bytes that are written, at most, what moves on in their wake; so much of a directory's capacity may be
    saved up for it.
    """
