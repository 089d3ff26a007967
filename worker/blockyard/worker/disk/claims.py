"""A worker's directories before they are opened: each is there, is nobody else's, and its file system can hold it. Owns
the locks, and what keeps a worker from starting.

refused     what somebody has to change: a wrong path, permissions, a size that cannot be, a directory in use
put off     a device that fails or does not answer: the worker starts without it, and it is tried again
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from blockyard.common.config import DiskSpec, Floor, SettingError, require_room
from blockyard.common.errors import BlockyardError
from blockyard.worker.disk.format.names import LOCK
from blockyard.worker.disk.own_thread import on_own_thread
from blockyard.worker.disk.ownership import DirectoryOwned, Ownership

_LAST_SECONDS = 1.0

_WRONG_PATH = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_WRONG_LOCK = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO}
"""What no waiting mends. All else is a device that fails."""


class Refused(BlockyardError):
    """Not to be used before somebody changes something; `named` are the directories that it is about."""

    def __init__(self, named: str, reason: str) -> None:
        super().__init__(reason)
        self.named = named


class Claim(NamedTuple):
    """A directory that is this process's alone, on a file system of `total` bytes."""

    lock: Ownership
    device: int
    total: int


class Claims:
    """`begin` once, before anything else; then `get`, one thread for each directory at a time."""

    def __init__(self, specs: Sequence[DiskSpec], floor: Floor, owner: str) -> None:
        self._specs = specs
        self._floor = floor
        self._owner = owner
        self._coming: dict[DiskSpec, Future[Claim]] = {}
        self._held: dict[DiskSpec, Claim] = {}
        self._seen: dict[tuple[int, int], DiskSpec] = {}
        self._changing = threading.Lock()

    def begin(self, patience: float) -> None:
        """Try all at once, and wait so long for them together. Raises SettingError for one that is refused."""
        deadline = time.monotonic() + patience
        for spec in self._specs:
            self._coming[spec] = on_own_thread(f"claim {spec.path}", partial(self._claim, spec))
        for spec in self._specs:
            try:
                self._coming[spec].result(max(0.0, deadline - time.monotonic()))
            except Refused as error:
                raise SettingError("disk", error.named, str(error)) from None
            except (OSError, TimeoutError):
                continue

    def get(self, spec: DiskSpec) -> Claim:
        """The claim; one that failed is tried again. Raises OSError or Refused; blocks as long as the device hangs."""
        if spec not in self._held:
            coming = self._coming.pop(spec, None)
            return self._claim(spec) if coming is None else coming.result()
        return self._held[spec]

    def close(self) -> None:
        """Let go of all; where a device hangs, that is left to the end of the process."""
        held = list(self._held.values())

        def work() -> None:
            for claim in held:
                claim.lock.close()

        with contextlib.suppress(TimeoutError):
            on_own_thread("claims", work).result(_LAST_SECONDS)

    def _claim(self, spec: DiskSpec) -> Claim:
        found = _directory(spec)
        with self._changing:
            first = self._seen.setdefault((found.st_dev, found.st_ino), spec)
        if first != spec:
            raise Refused(str(spec), f"is the same directory as {first.path}")
        claim = Claim(_locked(spec, self._owner), found.st_dev, shutil.disk_usage(spec.path).total)
        try:
            self._admit(spec, claim)
        except Refused:
            claim.lock.close()
            raise
        return claim

    def _admit(self, spec: DiskSpec, claim: Claim) -> None:
        """It is held from now on, if it fits beside the others of its file system."""
        with self._changing:
            together = [other for other, held in self._held.items() if held.device == claim.device]
            try:
                require_room([*together, spec], self._floor, claim.total)
            except SettingError as error:
                raise Refused(error.value or str(spec), error.right) from None
            self._held[spec] = claim


def _directory(spec: DiskSpec) -> os.stat_result:
    """Raises Refused unless it is a directory that this user may work in, and OSError where the device fails."""
    try:
        found = os.stat(spec.path)
    except OSError as error:
        if error.errno in _WRONG_PATH:
            raise Refused(str(spec), "must name a directory that exists") from None
        if error.errno != errno.EACCES:
            raise
        raise Refused(str(spec), "must name a directory that this user can read and write") from None
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(str(spec), "must name a directory that exists")
    if not os.access(spec.path, os.R_OK | os.W_OK | os.X_OK):
        if os.statvfs(spec.path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        raise Refused(str(spec), "must name a directory that this user can read and write")
    return found


def _locked(spec: DiskSpec, owner: str) -> Ownership:
    try:
        return Ownership(spec.path, owner)
    except DirectoryOwned as error:
        raise Refused(str(spec), str(error)) from None
    except OSError as error:
        if error.errno not in _WRONG_LOCK:
            raise
        raise Refused(str(spec), f"its file {LOCK} cannot be locked: {error.strerror}") from None
