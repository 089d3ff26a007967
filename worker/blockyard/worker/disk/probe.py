"""Finds out whether a directory's files can bypass the page cache. Owns one file that is gone afterwards.

File systems differ in what they take, and some accept the flag and fail the first write: so a page is written
and read back.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned

PROBE_NAME = "probe.tmp"


class Probe(NamedTuple):
    """`alignment` is the least of 512 and 4096 bytes that direct access takes; 0 and a reason when it takes
    neither, and files are buffered.
    """

    direct: bool
    alignment: int
    reason: str


def probe(path: Path) -> Probe:
    """Try it in this directory. Raises OSError only where no file can be written at all."""
    file = path / PROBE_NAME
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
    plain = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(plain, 0, 2 * PAGE)
        return _try_direct(file)
    finally:
        os.close(plain)
        file.unlink()


def _try_direct(file: Path) -> Probe:
    try:
        fd = os.open(file, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        return Probe(False, 0, f"O_DIRECT is refused: {error.strerror}")
    try:
        trouble = ""
        for alignment in (512, PAGE):
            trouble = _round_trip(fd, alignment)
            if not trouble:
                return Probe(True, alignment, "")
        return Probe(False, 0, trouble)
    finally:
        os.close(fd)


def _round_trip(fd: int, size: int) -> str:
    """Write and read `size` bytes at offset `size`; what went wrong, or nothing."""
    memory = aligned(2 * PAGE)
    written, read = memory[:size], memory[PAGE : PAGE + size]
    written[:] = bytes(range(256)) * (size // 256)
    try:
        if os.pwritev(fd, [written], size) != size:
            return f"a direct write of {size} bytes is cut short"
        if os.preadv(fd, [read], size) != size:
            return f"a direct read of {size} bytes is cut short"
    except OSError as error:
        return f"direct access by {size} bytes fails: {error.strerror}"
    return "" if read == written else f"a direct read of {size} bytes returns other bytes than were written"
