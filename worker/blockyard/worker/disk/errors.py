"""Why the store does not do what it is asked for, when no file operation failed. Owns the words."""

from __future__ import annotations

from blockyard.common.errors import BlockyardError


class NoRoom(BlockyardError):
    """A new segment would exceed the cap or leave less than the floor. Reclaim a segment, then try again."""

    def __init__(self, limit: str, detail: str) -> None:
        super().__init__(detail)
        self.limit = limit
        """`cap` or `floor`."""


class SegmentGone(BlockyardError):
    """The extent's segment was reclaimed, or is about to be: a miss."""


class ExtentTooLarge(BlockyardError):
    """It fits no segment of this store."""
