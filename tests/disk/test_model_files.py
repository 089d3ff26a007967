"""The simulator's files against real ones: the same random operations, the same results and errors, one by one."""

from __future__ import annotations

import errno
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path

import pytest

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.io import DiskDirectory, DiskFile
from blockyard.worker.disk.probe import probe
from blockyard.worker.disk.real import RealDirectory
from sim.files import ModelDirectory

NAMES = ("a", "b", "c")
STEPS = 120


@dataclass
class Pair:
    """One directory of each kind, and the same files open in both."""

    real: DiskDirectory
    model: DiskDirectory
    open: list[tuple[DiskFile, DiskFile]] = field(default_factory=list)

    def both(self, act: Callable[[DiskDirectory], object]) -> tuple[object, object]:
        return outcome(lambda: act(self.real)), outcome(lambda: act(self.model))

    def same(self, act: Callable[[DiskDirectory], object], what: str) -> None:
        """An operation that returns plain values."""
        real, model = self.both(act)
        assert real == model, what

    def opening(self, act: Callable[[DiskDirectory], DiskFile], what: str) -> None:
        """An operation that returns a file; it stays open."""
        real, model = self.both(act)
        if isinstance(real, int) or isinstance(model, int):
            assert real == model, what
        else:
            self.open.append((real, model))  # type: ignore[arg-type]

    def on_file(self, draw: random.Random, act: Callable[[DiskFile], object], what: str) -> None:
        if self.open:
            real, model = draw.choice(self.open)
            assert outcome(lambda: act(real)) == outcome(lambda: act(model)), what

    def close(self) -> None:
        for files in self.open:
            for file in files:
                file.close()
        self.open.clear()


def outcome(act: Callable[[], object]) -> object:
    """What it returns, or its errno."""
    try:
        return act()
    except OSError as error:
        return error.errno


def contents(directory: DiskDirectory) -> dict[str, tuple[int, bytes]]:
    found = {}
    for entry in directory.entries().entries:
        memory = aligned(entry.size + 2 * PAGE)
        file = directory.open(entry.name, direct=False)
        done = file.preadv([memory], 0)
        file.close()
        found[entry.name] = (entry.size, bytes(memory[:done]))
    return found


def step(pair: Pair, draw: random.Random, odd: bool) -> str:
    """One operation on both; `odd` allows for places that direct access refuses."""
    name, other = draw.choice(NAMES), draw.choice(NAMES)
    offset = draw.randrange(6) * PAGE + (draw.choice([0, 100, 700]) if odd else 0)
    size = draw.randrange(1, 4) * PAGE + (draw.choice([0, 1, 33]) if odd else 0)
    what = draw.choice(["create", "open", "read-only", "rename", "unlink", "close", "list", "sync"] + ["data"] * 8)
    told = f"{what} {name} {other} {offset} {size}"
    if what == "create":
        pair.opening(lambda one: one.create(name, size // PAGE * PAGE, direct=True), told)
    elif what in ("open", "read-only"):
        pair.opening(lambda one: one.open(name, direct=True, write=what == "open"), told)
    elif what == "rename":
        pair.same(lambda one: one.rename(name, other), told)
    elif what == "unlink":
        pair.same(lambda one: one.unlink(name), told)
    elif what == "sync":
        pair.same(lambda one: one.sync(), told)
    elif what == "list":
        pair.same(lambda one: [entry[:2] for entry in one.entries().entries], told)
    elif what == "close" and pair.open:
        for file in pair.open.pop(draw.randrange(len(pair.open))):
            file.close()
    elif what == "data":
        data_step(pair, draw, offset, size)
    return told


def data_step(pair: Pair, draw: random.Random, offset: int, size: int) -> None:
    what = draw.choice(["write", "write", "read", "read", "truncate", "fdatasync", "size"])
    told = f"{what} {offset} {size}"
    memory = aligned(size + PAGE)[:size]
    if what == "write":
        memory[:] = draw.randbytes(size)
        half = size // 2 // PAGE * PAGE
        pair.on_file(draw, lambda file: file.pwritev([memory[:half], memory[half:]], offset), told)
    elif what == "read":

        def read(file: DiskFile) -> tuple[int, bytes]:
            done = file.preadv([memory], offset)
            return done, bytes(memory[:done])

        pair.on_file(draw, read, told)
    elif what == "truncate":
        pair.on_file(draw, lambda file: file.truncate(offset), told)
    elif what == "fdatasync":
        pair.on_file(draw, lambda file: file.fdatasync(), told)
    else:
        pair.on_file(draw, lambda file: file.stat().size, told)


def compare(pair: Pair, seed: int, odd: bool) -> None:
    draw = random.Random(seed)
    history = [step(pair, draw, odd) for _ in range(STEPS)]
    pair.close()
    assert contents(pair.real) == contents(pair.model), history


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "buffered"])
def test_the_model_answers_as_real_files_do(folder: Path, seed: int, direct: bool) -> None:
    found = probe(folder)
    if direct and not found.direct:
        pytest.skip(f"no direct access here: {found.reason}")
    pair = Pair(RealDirectory(folder, direct=direct), ModelDirectory(1 << 30, direct=direct))
    compare(pair, seed, odd=not direct)


def test_direct_writes_are_refused_at_the_same_places(real: RealDirectory) -> None:
    if not real.direct:
        pytest.skip("no direct access here")
    pair = Pair(real, ModelDirectory(1 << 30))
    pair.opening(lambda one: one.create("a", 4 * PAGE, direct=True), "create")
    memory = aligned(2 * PAGE)
    for offset, size in ((100, PAGE), (0, 100), (PAGE, PAGE + 100)):
        for real_file, model_file in pair.open:
            for file in (real_file, model_file):
                assert outcome(partial(file.pwritev, [memory[:size]], offset)) == errno.EINVAL


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A real file system with 64 KiB, where this process may mount one."""
    point = tmp_path / "small"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "blockyard-test", str(point)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    yield point
    subprocess.run(["umount", str(point)], timeout=20, check=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_full_disk_answers_the_same(small: Path, seed: int) -> None:
    pair = Pair(RealDirectory(small, direct=False), ModelDirectory(64 << 10, direct=False))
    assert pair.real.space() == pair.model.space()
    compare(pair, seed, odd=False)
    for name in NAMES:
        pair.both(methodcaller("unlink", name))
    for pages, name in ((10, "a"), (7, "b"), (6, "c"), (1, "d")):
        pair.opening(methodcaller("create", name, pages * PAGE, direct=True), name)
    assert [entry.name for entry in pair.model.entries().entries] == ["a", "c"]
    for files in pair.open[1:]:
        assert [outcome(partial(file.pwritev, [aligned(PAGE)], 6 * PAGE)) for file in files] == [errno.ENOSPC] * 2
    pair.same(lambda one: one.unlink("a"), "unlink")
    pair.same(lambda one: one.space(), "the space of a file that is open")
    pair.close()
    pair.same(lambda one: one.space(), "the space after it was closed")
