"""Owns the spelling of sizes and durations: text with a unit to a number and back.

A bare number is refused: whoever writes 10 may mean bytes, GiB or seconds, and a guess is found out late.
"""

import re
from collections.abc import Mapping

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

_SIZES: Mapping[str, int] = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
_NANOSECONDS: Mapping[str, int] = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
}
_QUANTITY = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))? ?([A-Za-z]+)", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes in a text like "512MiB"; ValueError if it is none."""
    return _parse(text, _SIZES)


def format_size(size: int) -> str:
    """The shortest exact spelling: 1610612736 is "1536MiB"."""
    return _format(size, _SIZES)


def parse_duration(text: str) -> float:
    """Seconds in a text like "100ms"; ValueError if it is none."""
    return _parse(text, _NANOSECONDS) / 1e9


def format_duration(seconds: float) -> str:
    """The shortest spelling that is exact to the microsecond: 0.1 is "100ms"."""
    if seconds == 0:
        return "0s"
    return _format(round(seconds * 1e6) * 1000, _NANOSECONDS)


def _parse(text: str, units: Mapping[str, int]) -> int:
    """A whole count of the smallest unit, so that 1.5KiB is exact and 0.3B is an error."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[3] not in units:
        raise ValueError(text)
    whole, fraction, unit = match[1], match[2] or "", units[match[3]]
    scaled = int(whole + fraction) * unit
    quotient, rest = divmod(scaled, int(10 ** len(fraction)))
    if rest:
        raise ValueError(text)
    return quotient


def _format(count: int, units: Mapping[str, int]) -> str:
    for name, unit in units.items():
        if count and count % unit == 0:
            return f"{count // unit}{name}"
    smallest = list(units)[-1]
    return f"{count}{smallest}"
