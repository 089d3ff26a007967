"""A copier that can be told to stop in the middle of a store. Owns that moment, and nothing of copying."""

from threading import Event

from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.jobs import BlockRange


class StallingCopier(CpuCopier):
    """Copies as CpuCopier does; after `stall_after` chunks of a store it sets `stalled` and waits for `resume`."""

    stall_after: int | None = None

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.stalled = Event()
        self.resume = Event()

    def store(self, blocks: BlockRange, offset: int) -> int:
        """Copy one chunk, unless it is the one to stop before."""
        if self.stall_after == 0:
            self.stalled.set()
            self.resume.wait()
        if self.stall_after is not None:
            self.stall_after -= 1
        return super().store(blocks, offset)
