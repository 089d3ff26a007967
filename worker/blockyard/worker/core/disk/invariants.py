"""What must hold of the disk tier after every event. Owns the checks; reads the machine, and changes nothing."""

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from blockyard.worker.core.chunks import ChunkState

if TYPE_CHECKING:
    from blockyard.worker.core.worker import WorkerCore

_BOOK_STEPS = 8


def disk_books_balance(core: "WorkerCore") -> str:
    """Segments and classes agree on every copy, and each segment's bytes are those of its copies. Looked at in some
    steps only: it takes longer than the rest of the tier together.
    """
    if core.holdings.step % _BOOK_STEPS:
        return ""
    by_class = {id(c) for one in core.worlds.classes() for c in one.on_disk.values()}
    copies = list(core.disk.directories.copies())
    if by_class != {id(copy) for copy in copies}:
        return "classes and segments do not hold the same copies"
    for directory in core.disk.directories.all:
        if directory.file_bytes != sum(segment.bytes for segment in directory.segments.values()):
            return f"{directory.settings.name} counts {directory.file_bytes} bytes, its segments have others"
        for number, segment in directory.segments.items():
            live = sum(copy.length for copy in segment.copies.values())
            valued = sum(copy.length for copy in segment.copies.values() if copy.hit)
            where = f"segment {number} of {directory.settings.name}"
            if segment.number != number or (segment.live_bytes, segment.valued_bytes) != (live, valued):
                return f"{where} counts {segment.live_bytes} live bytes, {segment.valued_bytes} valued, has {live}"
            if segment.bytes < segment.end:
                return f"{where} has {segment.bytes} bytes, its copies end at {segment.end}"
            ends = sorted((copy.extent.offset, copy.extent.end) for copy in segment.copies.values())
            if any(before[1] > after[0] for before, after in pairwise(ends)):
                return f"{where} has copies that overlap"
    return ""


def operations_in_order(core: "WorkerCore") -> str:
    """What chunks, segments and devices count is what is under way, within its bounds."""
    operations = core.disk.operations.all.values()
    readers = Counter(one.copy.segment for one in operations if one.copy is not None)
    for directory in core.disk.directories.all:
        mine = [one.kind for one in operations if one.directory is directory]
        reads, writes = mine.count("read") + mine.count("forward"), mine.count("write")
        if (directory.reads, directory.writes) != (reads, writes):
            return f"{directory.settings.name} counts {directory.reads} reads and {directory.writes} writes"
        if any(segment.readers != readers[segment] for segment in directory.segments.values()):
            return f"{directory.settings.name} miscounts the readers of a segment"
        coming = [one.chunk for one in operations if one.kind == "write" and one.directory is directory]
        if directory.writing_bytes != sum(one.size_class.shape.extent_bytes for one in coming if one is not None):
            return f"{directory.settings.name} counts {directory.writing_bytes} bytes being written"
    reading = {one.chunk: one.number for one in operations if one.kind == "read"}
    writing = {one.chunk for one in operations if one.kind == "write"}
    for chunk in core.holdings.owners.values():
        read = 0 if chunk.from_peer else chunk.read
        if read and (chunk.state is not ChunkState.FILLING or reading.get(chunk) != read):
            return f"slot {chunk.slot} is {chunk.state.name}, being read by {chunk.read}, which is not under way"
        if chunk.writing != (chunk in writing):
            return f"slot {chunk.slot} being written is {chunk.writing}"
    held = sum(chunk.size_class.slot_bytes for chunk in writing if chunk is not None)
    return "" if held == core.disk.spilling.writing_bytes else f"{held} bytes are held for writes"


def spills_in_order(core: "WorkerCore") -> str:
    """What waits to be written is ready, checked, admitted, and neither on a disk that is used nor being written."""
    spills = core.holdings.spills
    for chunk in core.holdings.owners.values():
        due = chunk.state is ChunkState.READY and chunk.checked and not chunk.writing and spills.admits(chunk)
        due = due and spills.enabled and not chunk.unwanted and not spills.covered(chunk)
        if due != (chunk in spills):
            return f"slot {chunk.slot} waits to be written: {chunk in spills}, should: {due}"
    return ""


def waits_in_order(core: "WorkerCore") -> str:
    """Each waiting acquire waits for reads that are under way, for a live session, and not for too long."""
    reads = {one.number for one in core.disk.operations.all.values() if one.kind == "read"}
    reads |= core.peers.reads
    for one in core.pinning.waiting:
        if not one.reads or not one.reads <= reads:
            return f"acquire {one.message.seq} waits for reads {one.reads - reads or 'none'}"
        if core.book.live(one.session.id) is not one.session:
            return f"acquire {one.message.seq} waits for session {one.session.id}, which is gone"
        if one.deadline > core.now + one.message.wait_ms / 1000:
            return f"acquire {one.message.seq} waits too long"
    limit = core.settings.disk.max_waiting
    return "" if len(core.pinning.waiting) <= limit else f"{len(core.pinning.waiting)} acquires wait, {limit} may"


DISK_CHECKS = {
    "disk-books-balance": disk_books_balance,
    "operations-in-order": operations_in_order,
    "spills-in-order": spills_in_order,
    "waits-in-order": waits_in_order,
}
