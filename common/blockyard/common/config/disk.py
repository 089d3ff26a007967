"""Owns what a disk directory is in a configuration, and whether directories fit a file system. It must never
look at one, since that may take for ever.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.common.config.kinds import Kind
from blockyard.common.config.settings import SettingError
from blockyard.common.config.units import MIB, TIB, format_size, parse_size

_LARGEST = 1024 * TIB


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """A directory, and how many bytes all files in it may take."""

    path: Path
    capacity: int

    def __str__(self) -> str:
        return f"{self.path}:{format_size(self.capacity)}"


@dataclass(frozen=True)
class DiskSpecs(Kind[tuple[DiskSpec, ...]]):
    """Directories, each with its size: a flag given several times, a list separated by commas, or a TOML list."""

    metavar = "DIR:SIZE"
    repeatable = True

    @property
    def expected(self) -> str:
        return f"DIR:SIZE with an absolute path and {format_size(MIB)} or more, such as /mnt/nvme0:500GiB"

    def parse(self, raw: object) -> tuple[DiskSpec, ...]:
        given = raw if isinstance(raw, list) else [raw]
        items = [item for one in given for item in _items(one)]
        specs = tuple(_spec(item) for item in items)
        if len({spec.path for spec in specs}) != len(specs):
            raise ValueError(raw)
        return specs

    def show(self, value: tuple[DiskSpec, ...]) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes of a file system that must stay free: a number, or a share of the whole."""

    size: int = 0
    percent: float = 0.0

    def of(self, total: int) -> int:
        """In bytes, for a file system of `total` bytes."""
        return self.size or int(total * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent:g}%" if self.percent else format_size(self.size)


@dataclass(frozen=True)
class FreeSpace(Kind[Floor]):
    """A size, or a percentage."""

    metavar = "SIZE|PERCENT"

    @property
    def expected(self) -> str:
        return "a size with a unit (B, KiB, MiB, GiB, TiB), or a share below 100%, such as 5%"

    def parse(self, raw: object) -> Floor:
        if not isinstance(raw, str):
            raise ValueError(raw)
        text = raw.strip()
        if not text.endswith("%"):
            return Floor(size=parse_size(text))
        percent = float(text[:-1])
        if not 0 <= percent < 100:
            raise ValueError(raw)
        return Floor(percent=percent)


def require_room(specs: Sequence[DiskSpec], floor: Floor, total: int) -> None:
    """SettingError, with the arithmetic, if these do not fit together on their file system of `total` bytes."""
    kept, wanted = floor.of(total), sum(spec.capacity for spec in specs)
    if wanted + kept <= total:
        return
    named = " and ".join(map(str, specs))
    room = format_size(max(0, total - kept) // MIB * MIB)
    raise SettingError(
        "disk",
        named,
        f"its file system has {format_size(total // MIB * MIB)}, of which disk_floor keeps {floor} free; "
        f"at most {room} would fit",
    )


def _items(raw: object) -> list[str]:
    if not isinstance(raw, str):
        raise ValueError(raw)
    return [item.strip() for item in raw.split(",") if item.strip()]


def _spec(item: str) -> DiskSpec:
    path, colon, size = item.rpartition(":")
    capacity = parse_size(size)
    if not colon or not path.startswith("/") or "\0" in path or not MIB <= capacity <= _LARGEST:
        raise ValueError(item)
    return DiskSpec(Path(os.path.normpath(path)), capacity)
