"""Names of the files in a directory. Owns their spelling.

0000000000000007.segment   a segment
0000000000000007.log       its log
*.tmp                      half made; removed at the next start
lock                       held by the worker that uses the directory
"""

from __future__ import annotations

import re

LOCK = "lock"

_SEGMENT = re.compile(r"([0-9a-f]{16})\.segment")
_LOG = re.compile(r"([0-9a-f]{16})\.log")


def segment_name(segment: int) -> str:
    return f"{segment:016x}.segment"


def log_name(segment: int) -> str:
    return f"{segment:016x}.log"


def temporary(name: str) -> str:
    return f"{name}.tmp"


def is_temporary(name: str) -> bool:
    return name.endswith(".tmp")


def segment_of(name: str) -> int | None:
    """The number in a segment's name; None for other names."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1], 16) if found else None


def log_of(name: str) -> int | None:
    """The number in a log's name; None for other names."""
    found = _LOG.fullmatch(name)
    return int(found[1], 16) if found else None
