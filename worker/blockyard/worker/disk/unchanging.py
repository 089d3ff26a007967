"""A directory in which nothing changes. Owns the refusal: what a start would remove it only tells, since it cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from blockyard.worker.disk.real import RealDirectory, RealFile


class UnchangingDirectory(RealDirectory):
    """Real files that can only be read, through the page cache."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, direct=False)

    def create(self, name: str, size: int, *, direct: bool) -> RealFile:
        _refuse()

    def open(self, name: str, *, direct: bool, write: bool = False) -> RealFile:
        return _refuse() if write else super().open(name, direct=direct)

    def rename(self, old: str, new: str) -> None:
        _refuse()

    def unlink(self, name: str) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
