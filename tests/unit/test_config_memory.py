"""Whether a pool fits: the arithmetic, and the reading of limits in both control group versions."""

from pathlib import Path

import pytest

from blockyard.common.config import MemoryLimit, SettingError, require_memory, system_memory_limits
from blockyard.common.config.units import GIB, MIB

GROUP = MemoryLimit(4 * GIB, "the limit in /sys/fs/cgroup/memory.max")
FREE = MemoryLimit(16 * GIB, "the memory available on this machine")


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_pool_that_fits_exactly_is_taken() -> None:
    require_memory(4 * GIB - 256 * MIB, [FREE, GROUP], reserve=256 * MIB)
    require_memory(1 << 50, [])


def test_a_pool_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(SettingError) as caught:
        require_memory(4 * GIB, [FREE, GROUP], reserve=256 * MIB)
    assert str(caught.value) == (
        "host_pool = 4GiB: 4GiB and 256MiB for the worker itself make 4352MiB, "
        "but the limit in /sys/fs/cgroup/memory.max is 4096MiB; at most 3840MiB would fit"
    )


def test_a_limit_below_the_reserve_leaves_nothing() -> None:
    with pytest.raises(SettingError, match="at most 0MiB would fit"):
        require_memory(MIB, [MemoryLimit(MIB, "the limit")], reserve=256 * MIB)


def test_version_2_groups_limit_their_descendants(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "cgroup/memory.max": "max\n",
            "cgroup/outer/memory.max": f"{2 * GIB}\n",
            "cgroup/outer/inner/memory.max": f"{3 * GIB}\n",
        },
    )
    limits = system_memory_limits(tmp_path / "proc", tmp_path / "cgroup")
    assert sorted(limit.size for limit in limits) == [2 * GIB, 3 * GIB]
    assert f"the limit in {tmp_path}/cgroup/outer/memory.max" in {limit.named for limit in limits}


def test_version_1_groups_are_read_too(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/\n",
            "proc/meminfo": "MemTotal: 100 kB\nMemAvailable:      64 kB\n",
            # As inside a container: the path in /proc is the host's, the mount is the container's own group.
            "cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
        },
    )
    limits = system_memory_limits(tmp_path / "proc", tmp_path / "cgroup")
    assert [limit.size for limit in limits] == [GIB, 64 * 1024]


def test_a_group_without_a_limit_does_not_count(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"proc/self/cgroup": "4:memory:/\n", "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
    )
    assert system_memory_limits(tmp_path / "proc", tmp_path / "cgroup") == []


def test_this_machine_has_a_limit() -> None:
    assert all(limit.size > 0 for limit in system_memory_limits())
    assert system_memory_limits()
