"""Owns the question whether the host pool fits this machine, and its arithmetic.

The pool is a memfd: its pages count against the control group like any memory, and /dev/shm's size does not
matter. A pool that does not fit is found at the first touch of some page, by SIGBUS or the OOM killer; hence
the refusal at start. It must never know how the pool is made.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blockyard.common.config.settings import SettingError
from blockyard.common.config.units import MIB, format_size

RESERVE = 256 * MIB
"""Kept for the worker itself: its books, its buffers, the interpreter."""

# A control group without a limit reports a number near 2**63 in version 1.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """So many bytes, and who sets the limit, in words for an error."""

    size: int
    named: str


def require_memory(pool: int, limits: Iterable[MemoryLimit], reserve: int = RESERVE) -> None:
    """SettingError with the arithmetic if the pool and the reserve exceed the tightest limit."""
    tightest = min(limits, key=lambda limit: limit.size, default=None)
    if tightest is None or pool + reserve <= tightest.size:
        return
    needed = f"{format_size(pool)} and {format_size(reserve)} for the worker itself make {_mib(pool + reserve)}"
    room = max(0, tightest.size - reserve)
    right = f"{needed}, but {tightest.named} is {_mib(tightest.size)}; at most {_mib(room)} would fit"
    raise SettingError("host_pool", format_size(pool), right)


def system_memory_limits(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> list[MemoryLimit]:
    """The limits that this process runs under: control groups of either version, and memory available now."""
    return [*_cgroup_limits(proc / "self/cgroup", cgroups), *_available(proc / "meminfo")]


def _cgroup_limits(membership: Path, root: Path) -> list[MemoryLimit]:
    """The limits of this process's group and of those above it. In a container some paths do not exist."""
    found = []
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, file = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(base):
                found += _limit(directory / file)
    return found


def _limit(file: Path) -> list[MemoryLimit]:
    text = "".join(_lines(file))
    if not text.isdigit() or int(text) >= _UNLIMITED:
        return []
    return [MemoryLimit(int(text), f"the limit in {file}")]


def _available(meminfo: Path) -> list[MemoryLimit]:
    for line in _lines(meminfo):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return [MemoryLimit(int(rest.split()[0]) * 1024, "the memory available on this machine")]
    return []


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def _mib(size: int) -> str:
    return f"{size // MIB}MiB"
