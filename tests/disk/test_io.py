"""Files on whatever file system is here: probe, errors, loops over short answers; and each injected fault."""

import errno
import os
from pathlib import Path

import pytest

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import HeaderPages, aligned
from blockyard.worker.disk.io import DiskDirectory, error_name, read_full, write_all
from blockyard.worker.disk.probe import PROBE_NAME, probe
from blockyard.worker.disk.real import RealDirectory
from support.disk_faults import READS, WRITES, Fault, FaultyDirectory, Kind, ProcessKilled
from support.power_cut import PowerCutDirectory


def pattern(pages: int, salt: int = 0) -> memoryview:
    """Pages that differ in each byte's place and page."""
    memory = aligned(pages * PAGE)
    for page in range(pages):
        memory[page * PAGE : (page + 1) * PAGE] = bytes((page * 7 + salt + at) % 251 for at in range(PAGE))
    return memory


def content(directory: DiskDirectory, name: str, pages: int) -> bytes:
    memory = aligned(pages * PAGE)
    file = directory.open(name, direct=True)
    try:
        return bytes(memory[: read_full(file, [memory], 0)])
    finally:
        file.close()


def write(directory: DiskDirectory, name: str, data: memoryview, offset: int = 0) -> None:
    file = directory.open(name, direct=True, write=True)
    try:
        write_all(file, [data], offset)
    finally:
        file.close()


@pytest.fixture(params=["direct", "buffered"])
def directory(request: pytest.FixtureRequest, folder: Path) -> RealDirectory:
    found = probe(folder)
    if request.param == "direct" and not found.direct:
        pytest.skip(f"no direct access here: {found.reason}")
    return RealDirectory(folder, direct=request.param == "direct")


# The real layer.


def test_the_probe_leaves_nothing_and_says_what_it_found(folder: Path) -> None:
    found = probe(folder)
    assert list(folder.iterdir()) == []
    if found.direct:
        assert found.alignment in (512, PAGE) and not found.reason
    else:
        assert not found.alignment and found.reason


def test_the_probe_replaces_one_that_was_interrupted(folder: Path) -> None:
    (folder / PROBE_NAME).write_bytes(b"left behind")
    probe(folder)
    assert list(folder.iterdir()) == []


def test_the_probe_of_a_missing_directory_fails_as_the_kernel_does(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        probe(tmp_path / "nowhere")


def test_a_new_file_is_preallocated_and_zero(directory: RealDirectory) -> None:
    directory.create("a", 4 * PAGE, direct=True).close()
    ((name, size, allocated),) = directory.entries().entries
    assert (name, size) == ("a", 4 * PAGE)
    assert allocated >= 4 * PAGE
    assert content(directory, "a", 5) == bytes(4 * PAGE)


def test_bytes_come_back_in_order_over_several_buffers(directory: RealDirectory) -> None:
    directory.create("a", 4 * PAGE, direct=True).close()
    data = pattern(4)
    file = directory.open("a", direct=True, write=True)
    write_all(file, [data[:PAGE], data[PAGE : 3 * PAGE], data[3 * PAGE :]], 0)
    first, rest = aligned(3 * PAGE), aligned(PAGE)
    assert read_full(file, [first, rest], 0) == 4 * PAGE
    file.fdatasync()
    file.forget(0, 4 * PAGE)
    file.close()
    assert bytes(first) + bytes(rest) == bytes(data)


def test_the_kernels_errors_pass(directory: RealDirectory) -> None:
    directory.create("a", PAGE, direct=True).close()
    with pytest.raises(FileExistsError):
        directory.create("a", PAGE, direct=True)
    for act in (
        lambda: directory.open("b", direct=True),
        lambda: directory.unlink("b"),
        lambda: directory.rename("b", "c"),
    ):
        with pytest.raises(FileNotFoundError):
            act()


def test_rename_replaces_and_unlink_leaves_open_files_readable(directory: RealDirectory) -> None:
    for name in ("a", "b"):
        directory.create(name, PAGE, direct=True).close()
    write(directory, "a", pattern(1))
    file = directory.open("a", direct=True)
    directory.rename("a", "b")
    directory.sync()
    assert content(directory, "b", 1) == bytes(pattern(1))
    directory.unlink("b")
    memory = aligned(PAGE)
    assert read_full(file, [memory], 0) == PAGE
    assert memory == pattern(1)
    file.close()
    assert directory.entries().entries == ()


def test_cutting_a_file_gives_its_space_back(directory: RealDirectory) -> None:
    file = directory.create("a", 64 * PAGE, direct=True)
    file.truncate(2 * PAGE)
    assert file.stat().size == 2 * PAGE
    assert file.stat().allocated <= 4 * PAGE
    file.close()


def test_space_and_device_are_the_file_systems(directory: RealDirectory) -> None:
    space = directory.space()
    assert 0 < space.free <= space.total
    assert directory.device() == os.stat(directory.path).st_dev


def test_a_symbolic_link_is_no_file_of_ours(directory: RealDirectory, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x")
    (directory.path / "a").symlink_to(tmp_path / "elsewhere")
    assert directory.entries().entries == ()
    with pytest.raises(OSError, match="symbolic"):
        directory.open("a", direct=False)


def test_header_pages_are_used_again() -> None:
    pages = HeaderPages()
    with pages.page() as one, pages.page() as other:
        one[:1], other[:1] = b"1", b"2"
    with pages.page() as again:
        assert bytes(again[:1]) == b"1"


# The injected faults, on the same files.


@pytest.fixture
def faulty(directory: RealDirectory) -> FaultyDirectory:
    made = FaultyDirectory(directory)
    made.create("a", 8 * PAGE, direct=True).close()
    return made


@pytest.mark.parametrize("kind", [Kind.EIO, Kind.ENOSPC, Kind.EROFS])
@pytest.mark.parametrize("operation", ["create", "open", "unlink", "rename", "sync", "entries", "space"])
def test_an_error_is_raised_by_name(faulty: FaultyDirectory, kind: Kind, operation: str) -> None:
    faulty.inject(Fault(kind, frozenset({operation})))
    acts = {
        "create": lambda: faulty.create("b", PAGE, direct=True),
        "open": lambda: faulty.open("a", direct=True),
        "unlink": lambda: faulty.unlink("a"),
        "rename": lambda: faulty.rename("a", "b"),
        "sync": faulty.sync,
        "entries": faulty.entries,
        "space": faulty.space,
    }
    with pytest.raises(OSError, match=os.strerror(getattr(errno, kind.name))) as raised:
        acts[operation]()
    assert error_name(raised.value) == kind.name
    assert [entry.name for entry in faulty.entries().entries] == ["a"]


@pytest.mark.parametrize("kind", [Kind.SHORT, Kind.EINTR])
def test_short_and_interrupted_calls_are_gone_on_with(faulty: FaultyDirectory, kind: Kind) -> None:
    faulty.inject(Fault(kind, WRITES, at=1, times=3))
    faulty.inject(Fault(kind, READS, at=1, times=3))
    write(faulty, "a", pattern(8))
    assert content(faulty, "a", 8) == bytes(pattern(8))
    assert faulty.injected == 6


def test_a_torn_write_leaves_the_old_sectors_behind(faulty: FaultyDirectory) -> None:
    write(faulty, "a", pattern(2, salt=1))
    faulty.inject(Fault(Kind.TORN, WRITES, where=0.6))
    write(faulty, "a", pattern(2, salt=2))
    cut = int(2 * PAGE * 0.6) // 512 * 512
    assert content(faulty, "a", 2)[: 2 * PAGE] == bytes(pattern(2, salt=2)[:cut]) + bytes(pattern(2, salt=1)[cut:])


def test_a_misdirected_write_and_read_go_elsewhere(faulty: FaultyDirectory) -> None:
    faulty.inject(Fault(Kind.MISDIRECTED, WRITES))
    write(faulty, "a", pattern(1))
    assert content(faulty, "a", 8)[: 2 * PAGE] == bytes(PAGE) + bytes(pattern(1))
    faulty.inject(Fault(Kind.MISDIRECTED, READS))
    assert content(faulty, "a", 1) == bytes(pattern(1))


@pytest.mark.parametrize("on", [READS, WRITES])
def test_one_bit_is_flipped(faulty: FaultyDirectory, on: frozenset[str]) -> None:
    faulty.inject(Fault(Kind.FLIPPED, on, where=0.3))
    write(faulty, "a", pattern(1))
    found = content(faulty, "a", 1)
    assert sum((a ^ b).bit_count() for a, b in zip(found, pattern(1), strict=True)) == 1


def test_the_kth_operation_fails_and_the_others_do_not(faulty: FaultyDirectory) -> None:
    faulty.inject(Fault(Kind.EIO, at=3))
    outcomes = []
    for _ in range(5):
        try:
            faulty.space()
            outcomes.append("ok")
        except OSError:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "ok", "ok"]


def test_after_a_kill_nothing_is_done(faulty: FaultyDirectory) -> None:
    faulty.inject(Fault(Kind.KILLED, WRITES, where=0.5))
    with pytest.raises(ProcessKilled):
        write(faulty, "a", pattern(2))
    with pytest.raises(ProcessKilled):
        faulty.entries()
    assert content(faulty.inner, "a", 2)[: 2 * PAGE] == bytes(pattern(2)[:PAGE]) + bytes(PAGE)


# A loss of power.


def test_power_takes_what_was_not_synced(directory: RealDirectory) -> None:
    power = PowerCutDirectory(directory)
    power.create("a", 2 * PAGE, direct=True).close()
    power.sync()
    file = power.open("a", direct=True, write=True)
    write_all(file, [pattern(1, salt=1)], 0)
    file.fdatasync()
    write_all(file, [pattern(1, salt=2)], 0)
    write_all(file, [pattern(1, salt=3)], PAGE)
    power.create("b", PAGE, direct=True).close()
    power.cut()
    assert content(directory, "a", 2) == bytes(pattern(1, salt=1)) + bytes(PAGE)
    assert [entry.name for entry in directory.entries().entries] == ["a"]
    with pytest.raises(OSError, match="Input/output"):
        write_all(file, [pattern(1)], 0)


def test_power_brings_back_names_that_were_not_synced_away(directory: RealDirectory) -> None:
    power = PowerCutDirectory(directory)
    for name in ("a", "b", "c"):
        power.create(name, PAGE, direct=True).close()
        write(power, name, pattern(1, salt=ord(name)))
        file = power.open(name, direct=True, write=True)
        file.fdatasync()
        file.close()
    power.sync()
    power.rename("a", "b")
    power.unlink("c")
    power.cut()
    for name in ("a", "b", "c"):
        assert content(directory, name, 1) == bytes(pattern(1, salt=ord(name)))


def test_power_lets_survive_what_is_drawn(directory: RealDirectory) -> None:
    power = PowerCutDirectory(directory)
    power.create("a", 2 * PAGE, direct=True).close()
    power.sync()
    write(power, "a", pattern(1, salt=1), 0)
    write(power, "a", pattern(1, salt=2), PAGE)
    drawn = iter([True, False])
    power.cut(lambda: next(drawn))
    assert content(directory, "a", 2) == bytes(PAGE) + bytes(pattern(1, salt=2))
