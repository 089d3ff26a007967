"""One segment's log on disk. Owns where the next record goes and whether it fits; must never know why one is written.

Its caller lets one thread in at a time. A record that failed is overwritten by the next one, so the log stays
readable up to its last success.
"""

from __future__ import annotations

from blockyard.common.slot_table import align_page
from blockyard.worker.disk.format.log import LAYOUT, Drop, LogHeader, Put, Record, Seal, ShapeRecord, encode_frame
from blockyard.worker.disk.format.names import log_name
from blockyard.worker.disk.format.values import MAX_MODEL_BYTES, Extent, Shape
from blockyard.worker.disk.io import DiskDirectory, DiskFile, write_all

_DIGEST = bytes(32)
_BIG = (1 << 63) - 1
_UUID = bytes(16)
PUT_BYTES = len(encode_frame(_UUID, 0, Put((1 << 32) - 1, _BIG, _BIG, _DIGEST, bytes(8))))
DROP_BYTES = len(encode_frame(_UUID, 0, Drop(_BIG, _BIG)))
SEAL_BYTES = len(encode_frame(_UUID, 0, Seal(_BIG)))
SHAPE_BYTES = len(
    encode_frame(
        *(_UUID, 0),
        ShapeRecord((1 << 32) - 1, _DIGEST, "m" * MAX_MODEL_BYTES, (1 << 32) - 1, (1 << 32) - 1, 0, 65535, 16, 1 << 47),
    )
)


class SegmentLog:
    """`size` is the file's; `end` and `count` are those of the records in it."""

    def __init__(self, directory: DiskDirectory, header: LogHeader, size: int, end: int, count: int) -> None:
        self._directory = directory
        self._header = header
        self._file: DiskFile | None = None
        self._shapes: dict[Shape, int] = {}
        self.size = size
        self.end = end
        self.count = count

    @classmethod
    def create(cls, directory: DiskDirectory, header: LogHeader, size: int, name: str = "") -> SegmentLog:
        """A new file of this size with nothing but the header; kept open."""
        file = directory.create(name or log_name(header.segment), size, direct=False)
        log = cls(directory, header, size, LAYOUT.size, 0)
        log._file = file
        try:
            write_all(file, [header.pack()], 0)
        except BaseException:
            log.close()
            raise
        return log

    def has_room(self, extents: int, more: int) -> bool:
        """Whether `more` further extents fit, all of `extents` and these can be dropped, and the segment sealed."""
        needed = more * (PUT_BYTES + SHAPE_BYTES) + (extents + more) * DROP_BYTES + SEAL_BYTES
        return self.end + needed <= self.size

    def put(self, extent: Extent) -> None:
        """Note an extent that was written."""
        number = self._shapes.get(extent.shape)
        if number is None:
            number = len(self._shapes)
            self._append(ShapeRecord(number, *extent.shape))
            self._shapes[extent.shape] = number
        self._append(Put(number, extent.offset, extent.seq, extent.key, extent.salt_tag))

    def drop(self, extent: Extent) -> bool:
        """Note that an extent is not to be used any more; False when the log has no room for it."""
        if self.end + DROP_BYTES > self.size:
            return False
        self._append(Drop(extent.offset, extent.seq))
        return True

    def seal(self, used_bytes: int, live: int) -> int:
        """Note that the segment does not grow any more, and cut the file to what drops will need.

        Returns what the file takes then.
        """
        self._append(Seal(used_bytes))
        size = min(self.size, align_page(self.end + live * DROP_BYTES))
        self._opened().truncate(size)
        self.size = size
        return self._opened().stat().allocated

    def sync(self) -> None:
        """What was noted survives a loss of power."""
        self._opened().fdatasync()

    def close(self) -> None:
        """Let go of the file; the next record opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def allocated(self) -> int:
        return self._opened().stat().allocated

    def _append(self, record: Record) -> None:
        frame = encode_frame(self._header.uuid, self.count, record)
        write_all(self._opened(), [frame], self.end)
        self.end += len(frame)
        self.count += 1

    def _opened(self) -> DiskFile:
        if self._file is None:
            self._file = self._directory.open(log_name(self._header.segment), direct=False, write=True)
        return self._file
