"""First frames in the form of another version. Owns the part of a hello that never changes: tag, lowest and highest
protocol version, name of the release. Must never know what else a hello says.

Without it two releases that do not meet would call each other malformed, and nobody would learn that one is older.
"""

from typing import NamedTuple

import msgspec

_LONGEST_NAME = 256


class Spoken(NamedTuple):
    """What a peer speaks."""

    low: int
    high: int
    version: str


def foreign_hello(payload: bytes, tag: str, low: int, high: int) -> Spoken | None:
    """Who sent this frame, if it is a hello of only versions below `low` or above `high`."""
    try:
        content = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    match content:
        case [str(said), int(lowest), int(highest), str(version), *_]:
            if said == tag and 0 <= lowest <= highest and (highest < low or lowest > high):
                return Spoken(lowest, highest, version[:_LONGEST_NAME])
    return None
