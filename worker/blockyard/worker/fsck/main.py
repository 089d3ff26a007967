"""The command: takes the directory's lock, walks, reports, and repairs if it is told to. Owns the order and the exit
code; must never change anything unless told to, but the lock's own file.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from blockyard.common.errors import ConfigError
from blockyard.worker.disk.format.names import LOCK, segment_of
from blockyard.worker.disk.io import error_name
from blockyard.worker.disk.ownership import DirectoryOwned, Ownership
from blockyard.worker.disk.recovery import Kind
from blockyard.worker.fsck.repair import repair
from blockyard.worker.fsck.report import Report
from blockyard.worker.fsck.walk import CheckedSegment, Judged, Walk

CLEAN = 0
DAMAGED = 1

_DAMAGE = (Kind.DAMAGED, Kind.UNREADABLE)


def run(path: Path, *, each: bool, mend: bool) -> int:
    """Check the directory; `each` lists every extent, `mend` drops what is damaged. Raises ConfigError for a directory
    that cannot be checked now.
    """
    try:
        _require_disk_tier(path)
        with _locked(path, mend=mend):
            return _check(path, Report(Console()), each=each, mend=mend)
    except OSError as error:
        raise ConfigError(f"{path} cannot be worked on: {error.strerror or error_name(error)}") from None


def _check(path: Path, report: Report, *, each: bool, mend: bool) -> int:
    walk = Walk(path)
    damaged, faults = list[Judged](), sum(one.kind in _DAMAGE for one in walk.troubles)
    if each:
        report.head_of_list()
    for segment in _shown(walk, quiet=each):
        report.take(segment)
        damaged += segment.damaged
        faults += len(segment.damaged) + bool(segment.log_damage)
        if each:
            report.extents(segment)
    report.segments()
    report.troubles(walk.troubles)
    report.damage(damaged)
    if mend:
        # What the device did not give may be there the next time.
        report.repaired(repair(path, [one.extent for one in damaged if not one.unread]))
    report.verdict(faults, mend)
    return DAMAGED if faults else CLEAN


def _shown(walk: Walk, *, quiet: bool) -> Iterator[CheckedSegment]:
    """The segments, with a bar for who waits at a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("verifying", total=walk.total_bytes)
        for segment in walk.segments():
            progress.advance(task, segment.size)
            yield segment


def _require_disk_tier(path: Path) -> None:
    """A folder that no worker ever used is a wrong name, not a clean directory."""
    names = os.listdir(path)
    if LOCK not in names and not any(segment_of(name) is not None for name in names):
        raise ConfigError(f"{path} is not the directory of a disk tier: there is no segment and no lock in it")


@contextlib.contextmanager
def _locked(path: Path, *, mend: bool) -> Iterator[None]:
    """No worker uses the directory until the block ends. Where nobody can write, nothing can be locked, nor need be."""
    try:
        lock = Ownership(path, f"blockyard fsck (pid {os.getpid()})")
    except DirectoryOwned as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        if mend or error.errno != errno.EROFS:
            raise
        yield
        return
    with contextlib.closing(lock):
        yield
