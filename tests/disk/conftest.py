"""What the disk tests share: a directory of real files, direct where the file system of tmp_path allows it."""

from pathlib import Path

import pytest

from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for a store."""
    made = tmp_path / "store"
    made.mkdir()
    return made


@pytest.fixture
def real(folder: Path) -> RealDirectory:
    """As the probe finds it."""
    return RealDirectory(folder, direct=probe(folder).direct)
