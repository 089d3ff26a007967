"""`blockyard fsck` on real files: what it calls damage, what it leaves alone, what a repair takes and what it keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from blockyard.common.errors import ConfigError
from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format.values import Extent
from blockyard.worker.disk.ownership import Ownership
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.recovery import Kind
from blockyard.worker.fsck.main import run
from blockyard.worker.fsck.walk import CheckedSegment, Walk
from support.disk_bench import SHAPES, open_store, outcome, put

COUNT = 30


def filled(directory: RealDirectory, *, closed: bool = True) -> list[Extent]:
    """A directory as a worker leaves it, in order or killed."""
    store, _ = open_store(directory)
    extents = [put(store, number, SHAPES[number % 3]) for number in range(COUNT)]
    if closed:
        store.close()
    (directory.path / "lock").touch()
    return extents


def segment_file(directory: RealDirectory, number: int) -> Path:
    return directory.path / f"{number:016x}.segment"


def log_file(directory: RealDirectory, number: int) -> Path:
    return directory.path / f"{number:016x}.log"


def spoil(path: Path, offset: int, mask: int = 1) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def contents(directory: RealDirectory) -> dict[str, tuple[bytes, int]]:
    """All but the lock, whose file names its holder."""
    files = [path for path in directory.path.iterdir() if path.name != "lock"]
    return {path.name: (path.read_bytes(), path.stat().st_blocks) for path in files}


def checked(directory: RealDirectory) -> list[CheckedSegment]:
    return list(Walk(directory.path).segments())


def damaged(directory: RealDirectory) -> list[Extent]:
    return [one.extent for segment in checked(directory) for one in segment.damaged]


def found_by_a_start(directory: RealDirectory) -> list[Extent]:
    """What the next life can read; nothing that it was told of may be missing."""
    store, started = open_store(directory, seed=99)
    extents = [*started.extents, *(extent for number in started.to_scan for extent in store.scan(number))]
    assert [outcome(store, extent) for extent in extents] == ["right"] * len(extents)
    return sorted(extents, key=lambda extent: extent.seq)


@pytest.mark.parametrize("closed", [True, False])
def test_what_a_worker_leaves_is_clean_and_stays_as_it_is(
    real: RealDirectory, closed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    extents = filled(real, closed=closed)
    before = contents(real)
    assert run(real.path, each=True, mend=False) == 0
    assert contents(real) == before
    told = capsys.readouterr().out
    assert all(extent.key.hex() in told for extent in extents)
    assert f"{COUNT} extents" in told and "clean" in told and "damaged; " not in told
    assert [one.extent for segment in checked(real) for one in segment.judged] == extents
    assert all(segment.sealed for segment in checked(real)) == closed


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("place", [0, 60, 300, PAGE - 1, PAGE, 2 * PAGE - 1])
def test_a_flipped_bit_is_found_dropped_and_then_gone(real: RealDirectory, closed: bool, place: int) -> None:
    extents = filled(real, closed=closed)
    spoilt = extents[7]
    spoil(segment_file(real, spoilt.segment), spoilt.offset + place, mask=0x10)
    before = contents(real)
    assert damaged(real) == [spoilt]
    assert run(real.path, each=False, mend=False) == 1
    assert contents(real) == before, "nothing changes unless it is asked for"
    assert run(real.path, each=False, mend=True) == 1
    assert run(real.path, each=False, mend=False) == 0
    assert found_by_a_start(real) == [extent for extent in extents if extent != spoilt]


def test_a_segment_that_was_cut_short_loses_what_lay_behind(real: RealDirectory) -> None:
    extents = filled(real)
    last = [extent for extent in extents if extent.segment == 0][-1]
    os.truncate(segment_file(real, 0), last.end - 1)
    assert damaged(real) == [last]
    assert run(real.path, each=False, mend=True) == 1
    assert damaged(real) == []
    assert found_by_a_start(real) == [extent for extent in extents if extent != last]


@pytest.mark.parametrize("spoil_segment", [lambda path: spoil(path, 20), lambda path: os.truncate(path, 100)])
def test_a_segment_without_its_header_is_damage_until_it_is_removed(
    real: RealDirectory, spoil_segment: Callable[[Path], None]
) -> None:
    extents = filled(real)
    spoil_segment(segment_file(real, 0))
    assert [one.kind for one in Walk(real.path).troubles] == [Kind.DAMAGED]
    assert run(real.path, each=False, mend=False) == 1
    assert segment_file(real, 0).exists()
    assert run(real.path, each=False, mend=True) == 1
    assert not segment_file(real, 0).exists()
    assert run(real.path, each=False, mend=False) == 0
    assert found_by_a_start(real) == [extent for extent in extents if extent.segment]


def lose_log(path: Path) -> None:
    path.unlink()


def damage_log(path: Path) -> None:
    spoil(path, 200)


@pytest.mark.parametrize("spoil_log", [lose_log, damage_log])
def test_a_damaged_log_is_told_and_made_anew(real: RealDirectory, spoil_log: Callable[[Path], None]) -> None:
    extents = filled(real)
    spoil_log(log_file(real, 0))
    (segment, *others) = checked(real)
    assert segment.log_damage and not segment.damaged and not any(one.log_damage for one in others)
    assert run(real.path, each=False, mend=False) == 1
    assert run(real.path, each=False, mend=True) == 1
    assert run(real.path, each=False, mend=False) == 0
    assert found_by_a_start(real) == extents


def test_damage_that_no_log_tells_of_is_found_by_its_header(real: RealDirectory) -> None:
    extents = filled(real)
    log_file(real, 0).unlink()
    spoil(segment_file(real, 0), extents[3].offset + PAGE)
    assert damaged(real) == [extents[3]]
    assert run(real.path, each=False, mend=True) == 1
    assert run(real.path, each=False, mend=False) == 0
    assert found_by_a_start(real) == [extent for extent in extents if extent != extents[3]]


def test_a_write_that_was_never_acknowledged_is_no_damage(real: RealDirectory) -> None:
    extents = filled(real, closed=False)
    last = extents[-1]
    begun = bytearray(segment_file(real, last.segment).read_bytes()[last.offset : last.end])
    begun[32:40] = last.end.to_bytes(8, "little")
    begun[4088:4096] = xxhash.xxh3_64_intdigest(begun[:4088]).to_bytes(8, "little")
    begun[PAGE] ^= 1
    with open(segment_file(real, last.segment), "r+b") as file:
        file.seek(last.end)
        file.write(begun)
    assert [segment.unfinished for segment in checked(real)][-1] == 1
    assert run(real.path, each=False, mend=False) == 0


@pytest.mark.parametrize("mend", [True, False])
def test_another_version_is_told_and_left_alone(
    real: RealDirectory, mend: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(real)
    page = bytearray(segment_file(real, 0).read_bytes()[:PAGE])
    page[8] = 2
    page[4088:4096] = xxhash.xxh3_64_intdigest(page[:4088]).to_bytes(8, "little")
    with open(segment_file(real, 0), "r+b") as file:
        file.write(page)
    before = contents(real)
    assert [one.kind for one in Walk(real.path).troubles] == [Kind.FOREIGN]
    assert run(real.path, each=False, mend=mend) == 0
    assert contents(real) == before
    assert "format version 2; this Blockyard reads version 1" in capsys.readouterr().out


def test_leftovers_of_a_killed_worker_are_told_and_are_no_damage(real: RealDirectory) -> None:
    filled(real)
    for name in ("probe.tmp", f"{99:016x}.log", f"{98:016x}.segment"):
        (real.path / name).write_bytes(bytes(2 * PAGE))
    before = contents(real)
    assert {one.kind for one in Walk(real.path).troubles} == {Kind.LEFTOVER}
    assert run(real.path, each=False, mend=False) == 0
    assert contents(real) == before
    assert run(real.path, each=False, mend=True) == 0
    assert not Walk(real.path).troubles


def test_what_was_dropped_is_not_looked_at(real: RealDirectory) -> None:
    store, _ = open_store(real)
    extents = [put(store, number, SHAPES[0]) for number in range(3)]
    assert store.drop(extents[1])
    spoil(segment_file(real, 0), extents[1].offset + PAGE)
    assert [one.extent for segment in checked(real) for one in segment.judged] == [extents[0], extents[2]]
    assert run(real.path, each=False, mend=False) == 0


def test_a_directory_in_use_is_refused(real: RealDirectory) -> None:
    filled(real)
    lock = Ownership(real.path, "worker node-a (pid 7)")
    with pytest.raises(ConfigError, match=r"disk directory .* is in use by worker node-a \(pid 7\)"):
        run(real.path, each=False, mend=False)
    lock.close()
    assert run(real.path, each=False, mend=False) == 0


def test_the_command_ends_with_a_code_and_a_line(real: RealDirectory, tmp_path: Path) -> None:
    spoilt = filled(real)[7]
    spoil(segment_file(real, spoilt.segment), spoilt.offset + PAGE)
    found = fsck(str(real.path), "--list")
    assert (found.returncode, found.stderr) == (1, "")
    assert f"at {spoilt.offset}, key {spoilt.key.hex()[:12]}: area 0 has checksum" in found.stdout
    assert "1 damaged; --repair drops what is damaged" in found.stdout
    (line,) = [line for line in found.stdout.splitlines() if line.startswith(spoilt.key.hex())]
    key, group, size, segment, offset, state, model = line.split()
    assert (key, group, size) == (spoilt.key.hex(), "0", str(spoilt.shape.extent_bytes))
    assert (int(segment, 16), offset, state, model) == (spoilt.segment, str(spoilt.offset), "damaged", "a-model")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere", "nowhere cannot be worked on: No such file or directory"),
        (".", "is not the directory of a disk tier: there is no segment and no lock in it"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_exit_code_2(tmp_path: Path, name: str, told: str) -> None:
    found = fsck(str(tmp_path / name))
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("blockyard: ") and found.stderr.endswith(f"{told}\n")
    assert found.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def fsck(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "blockyard.cli.main", "fsck", *arguments],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
