"""Owns the kinds of value a setting can have: what is accepted, how it is shown, and the words for both.

A kind takes what a flag, a variable or a TOML file can give and raises ValueError for all else; who reports
the error adds the setting's name and source to the kind's own sentence of what would be right. It must never
know which settings there are.
"""

import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from blockyard.common.config.address import Address, parse_address
from blockyard.common.config.units import format_duration, format_size, parse_duration, parse_size

T = TypeVar("T")

# Linux: sun_path holds 108 bytes, the last of them zero.
MAX_SOCKET_PATH = 107


class Kind(ABC, Generic[T]):
    """One kind of value. `metavar` stands for it in help, `expected` completes "must be …"."""

    metavar: str
    repeatable = False
    """A flag of it may be given several times."""

    @property
    @abstractmethod
    def expected(self) -> str: ...

    @abstractmethod
    def parse(self, raw: object) -> T: ...

    def show(self, value: T) -> str:
        """The value as one would write it."""
        return str(value)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(raw)
    return raw.strip()


def _require(condition: bool, raw: object) -> None:
    if not condition:
        raise ValueError(raw)


@dataclass(frozen=True)
class Size(Kind[int]):
    """A number of bytes."""

    least: int
    most: int
    power_of_two: bool = False
    multiple_of: int = 1
    metavar = "SIZE"

    @property
    def expected(self) -> str:
        shape = ", a power of two" if self.power_of_two else ""
        if self.multiple_of > 1:
            shape += f", a multiple of {format_size(self.multiple_of)}"
        span = f"{format_size(self.least)} to {format_size(self.most)}"
        return f"a size with a unit (B, KiB, MiB, GiB, TiB), {span}{shape}"

    def parse(self, raw: object) -> int:
        size = parse_size(_text(raw))
        _require(self.least <= size <= self.most, raw)
        _require(size % self.multiple_of == 0, raw)
        _require(not self.power_of_two or size.bit_count() == 1, raw)
        return size

    def show(self, value: int) -> str:
        return format_size(value)


@dataclass(frozen=True)
class Duration(Kind[float]):
    """A time span in seconds."""

    least: float
    most: float
    whole_seconds: bool = False
    metavar = "TIME"

    @property
    def expected(self) -> str:
        span = f"{format_duration(self.least)} to {format_duration(self.most)}"
        shape = ", in whole seconds" if self.whole_seconds else ""
        return f"a time with a unit (us, ms, s, m, h), {span}{shape}"

    def parse(self, raw: object) -> float:
        seconds = parse_duration(_text(raw))
        _require(self.least <= seconds <= self.most, raw)
        _require(not self.whole_seconds or seconds.is_integer(), raw)
        return seconds

    def show(self, value: float) -> str:
        return format_duration(value)


@dataclass(frozen=True)
class Count(Kind[int]):
    """A whole number of things."""

    least: int
    most: int
    metavar = "N"

    @property
    def expected(self) -> str:
        return f"a whole number, {self.least} to {self.most}"

    def parse(self, raw: object) -> int:
        # True is an int to Python, and "1_000" a number.
        if isinstance(raw, int) and not isinstance(raw, bool):
            number = raw
        else:
            text = _text(raw)
            _require(re.fullmatch(r"\d{1,18}", text, re.ASCII) is not None, raw)
            number = int(text)
        _require(self.least <= number <= self.most, raw)
        return number


@dataclass(frozen=True)
class Switch(Kind[bool]):
    """On or off."""

    metavar = "BOOL"

    @property
    def expected(self) -> str:
        return "true or false"

    def parse(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        words = {"true": True, "1": True, "false": False, "0": False}
        word = _text(raw).lower()
        _require(word in words, raw)
        return words[word]

    def show(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Choice(Kind[str]):
    """One of a few words."""

    words: tuple[str, ...]
    metavar = "WORD"

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.words) if len(self.words) > 1 else self.words[0]

    def parse(self, raw: object) -> str:
        word = _text(raw)
        _require(word in self.words, raw)
        return word


@dataclass(frozen=True)
class Name(Kind[str]):
    """A name that is safe in an etcd key, a metric label and a file name."""

    metavar = "NAME"

    @property
    def expected(self) -> str:
        return "1 to 64 of the characters A-Z a-z 0-9 . _ -"

    def parse(self, raw: object) -> str:
        name = _text(raw)
        _require(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name, re.ASCII) is not None, raw)
        return name


@dataclass(frozen=True)
class HostPort(Kind[Address]):
    """An address to listen on, or (`reachable`) one that others connect to."""

    reachable: bool = False
    metavar = "HOST:PORT"

    @property
    def expected(self) -> str:
        if self.reachable:
            return "HOST:PORT as other machines reach it (no wildcard such as 0.0.0.0)"
        return "HOST:PORT to listen on; port 0 takes a free one"

    def parse(self, raw: object) -> Address:
        address = parse_address(_text(raw))
        _require(not (self.reachable and address.is_wildcard), raw)
        return address


OFF = Address("", 0)
"""No address at all, where something can be switched off by that."""


@dataclass(frozen=True)
class HostPortOrOff(HostPort):
    """An address to listen on, or the word `off`, or nothing."""

    @property
    def expected(self) -> str:
        return f"{super().expected}; or off"

    def parse(self, raw: object) -> Address:
        return OFF if _text(raw) in ("", "off") else super().parse(raw)

    def show(self, value: Address) -> str:
        return "off" if value == OFF else str(value)


@dataclass(frozen=True)
class Endpoints(Kind[tuple[Address, ...]]):
    """Several addresses of one service, separated by commas, or a TOML list."""

    metavar = "HOST:PORT,..."

    @property
    def expected(self) -> str:
        return "a list of HOST:PORT separated by commas, without http://"

    def parse(self, raw: object) -> tuple[Address, ...]:
        items = raw if isinstance(raw, list) else [item for item in _text(raw).split(",") if item.strip()]
        addresses = tuple(parse_address(_text(item)) for item in items)
        _require(all(address.port and not address.is_wildcard for address in addresses), raw)
        _require(len(set(addresses)) == len(addresses), raw)
        return addresses

    def show(self, value: tuple[Address, ...]) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True)
class ReadableFile(Kind[Path]):
    """A file that must be there when the configuration is read."""

    metavar = "FILE"

    @property
    def expected(self) -> str:
        return "the path of a file that this user can read"

    def parse(self, raw: object) -> Path:
        path = Path(_text(raw))
        _require(path.is_file() and os.access(path, os.R_OK), raw)
        return path


@dataclass(frozen=True)
class SocketPath(Kind[Path]):
    """Where a Unix socket is made."""

    metavar = "PATH"

    @property
    def expected(self) -> str:
        return f"an absolute path of at most {MAX_SOCKET_PATH} bytes"

    def parse(self, raw: object) -> Path:
        text = _text(raw)
        _require(text.startswith("/") and not text.endswith("/") and "\0" not in text, raw)
        _require(len(os.fsencode(text)) <= MAX_SOCKET_PATH, raw)
        return Path(text)


@dataclass(frozen=True)
class Mode(Kind[int]):
    """Permission bits, always in octal."""

    metavar = "MODE"

    @property
    def expected(self) -> str:
        return "octal permission bits in quotes that let the owner in and others not, such as 0600 or 0660"

    def parse(self, raw: object) -> int:
        text = _text(raw)
        _require(re.fullmatch(r"0?[67][0-7]0", text, re.ASCII) is not None, raw)
        return int(text, 8)

    def show(self, value: int) -> str:
        return f"{value:04o}"
