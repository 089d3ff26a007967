"""What is under way at the devices. Owns the operations and their numbers; judges no outcome.

Each is answered by exactly one event, however late. One that hangs is not forgotten: its slot is not reused and its
place in the device's count is taken until the system call has returned.
"""

from dataclasses import dataclass
from typing import Literal

from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.disk.directories import Directory, DiskCopy, Segment

Kind = Literal["write", "read", "forward", "reclaim", "probe"]


@dataclass(slots=True, eq=False)
class Operation:
    """`chunk` is the host slot's of a read or write, `copy` what is read, `segment` what is given back."""

    number: int
    kind: Kind
    directory: Directory
    started: float
    chunk: Chunk | None = None
    copy: DiskCopy | None = None
    segment: Segment | None = None
    late: bool = False
    """It has taken longer than it may, and whoever waited was told."""


class Operations:
    """By number, in the order of their starts."""

    def __init__(self) -> None:
        self.all: dict[int, Operation] = {}
        self._last = 0

    def next_number(self) -> int:
        """A number that none has had. Whatever else can be waited for as for a read takes its own from here."""
        self._last += 1
        return self._last

    def start(
        self,
        kind: Kind,
        directory: Directory,
        now: float,
        chunk: Chunk | None = None,
        copy: DiskCopy | None = None,
        segment: Segment | None = None,
    ) -> Operation:
        operation = Operation(self.next_number(), kind, directory, now, chunk, copy, segment)
        self.all[operation.number] = operation
        _count(operation, 1)
        return operation

    def end(self, number: int) -> Operation | None:
        """The operation of this number has ended; None when there is none, which a shell never causes."""
        operation = self.all.pop(number, None)
        if operation is not None:
            _count(operation, -1)
        return operation

    def hanging(self, now: float, patience: float) -> list[Operation]:
        """Those that have taken too long and are not yet known to hang."""
        late = []
        for operation in self.all.values():
            if now - operation.started < patience:
                break
            if not operation.late:
                late.append(operation)
        return late

    def next_deadline(self, patience: float) -> float | None:
        """When the next one will have taken too long."""
        started = (operation.started for operation in self.all.values() if not operation.late)
        first = next(started, None)
        return None if first is None else first + patience


def _count(one: Operation, sign: int) -> None:
    """It begins, or has ended, for all whom it keeps busy."""
    directory = one.directory
    if one.kind in ("read", "forward"):
        directory.reads += sign
    if one.kind == "forward" and one.copy is not None:
        directory.moving_bytes += sign * one.copy.length
    if one.kind == "write" and one.chunk is not None:
        directory.writes += sign
        directory.writing_bytes += sign * one.chunk.size_class.shape.extent_bytes
    if one.copy is not None:
        one.copy.segment.readers += sign
    if one.chunk is not None:
        one.chunk.copiers += sign
