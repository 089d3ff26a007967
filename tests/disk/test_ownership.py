"""Whose a directory is, while it is removed, made again and taken by others; and what a look at it finds."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.worker.disk.format.names import LOCK
from blockyard.worker.disk.io import Space
from blockyard.worker.disk.lookout import Lookout
from blockyard.worker.disk.opening import Answer
from blockyard.worker.disk.ownership import DirectoryOwned, Ownership
from blockyard.worker.disk.threads import IoClass


def test_a_directory_that_is_gone_is_nobody_s_until_it_is_made_again(folder: Path) -> None:
    lock = Ownership(folder, "worker a")
    lock.ensure()
    shutil.rmtree(folder)
    with pytest.raises(OSError, match="not there any more") as raised:
        lock.ensure()
    assert raised.value.errno == errno.ESTALE
    folder.mkdir()
    lock.ensure()
    with pytest.raises(DirectoryOwned, match="in use by worker a"):
        Ownership(folder, "worker b")
    lock.close()
    Ownership(folder, "worker b").close()


def test_a_directory_whose_lock_another_worker_has_is_not_used(folder: Path) -> None:
    first = Ownership(folder, "worker a")
    (folder / LOCK).unlink()
    second = Ownership(folder, "worker b")
    with pytest.raises(OSError, match="in use by worker b") as raised:
        first.ensure()
    assert raised.value.errno == errno.EBUSY
    second.close()
    first.ensure()


class AtOnce:
    """Does work where it is asked for."""

    def submit(self, kind: IoClass, size: int, work: Callable[[], object], answer: Answer) -> bool:
        try:
            answer(work())
        except OSError as error:
            answer(error)
        return False


@pytest.mark.parametrize(("free", "told"), [(5 << 20, True), (6 << 20, False), (0, True)])
def test_room_that_others_take_is_told(folder: Path, free: int, told: bool) -> None:
    heard: list[str] = []
    lock = Ownership(folder, "worker a")
    Lookout(AtOnce(), lock.ensure, lambda: Space(120 << 20, free), lambda total: total // 20, heard.append).look()
    assert [bool(words) for words in heard] == [told]
    assert not told or (f"has {free >> 20 or 0}" in heard[0] and "less than 6MiB" in heard[0])
    shutil.rmtree(folder)
    Lookout(AtOnce(), lock.ensure, lambda: Space(1, 1), lambda total: 0, heard.append).look()
    assert heard[1] == "the directory is not there any more"
