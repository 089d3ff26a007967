"""The sizes a store works with. Owns them and what they imply; must never read them from anywhere."""

from __future__ import annotations

from typing import NamedTuple

from blockyard.common.slot_table import PAGE, align_page

_LOG_SHARE = 256
_LEAST_LOG = 4 * PAGE
_METADATA = 16 * PAGE


class StoreSettings(NamedTuple):
    """In bytes. All files together never take more than `cap_bytes`; making a segment leaves `floor_bytes` free."""

    cap_bytes: int
    floor_bytes: int
    segment_bytes: int

    @property
    def log_bytes(self) -> int:
        """Of a log while its segment grows. Full before the segment only where extents are tiny."""
        return max(_LEAST_LOG, align_page(self.segment_bytes // _LOG_SHARE))

    @property
    def reserve_bytes(self) -> int:
        """Kept free below the cap: for a log that is written anew beside the old one, and for what the file system
        adds to files and to the directory.
        """
        return self.log_bytes + _METADATA

    @property
    def new_segment_bytes(self) -> int:
        """What making a segment needs below the cap."""
        return self.segment_bytes + self.log_bytes + self.reserve_bytes

    @property
    def segments(self) -> int:
        """How many fit below the cap, each as large as it can be."""
        return (self.cap_bytes - self.reserve_bytes) // (self.segment_bytes + self.log_bytes)

    def check(self) -> None:
        """Raises ValueError naming the size that cannot be worked with."""
        if self.segment_bytes < 3 * PAGE or self.segment_bytes % PAGE:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}, must be a multiple of {PAGE}, at least {3 * PAGE}"
            )
        if self.cap_bytes < self.new_segment_bytes:
            raise ValueError(
                f"cap_bytes is {self.cap_bytes}, must be at least {self.new_segment_bytes}: a segment of "
                f"{self.segment_bytes}, its log of {self.log_bytes} and {self.reserve_bytes} in reserve"
            )
        if self.floor_bytes < 0:
            raise ValueError(f"floor_bytes is {self.floor_bytes}, must not be negative")
