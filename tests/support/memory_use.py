"""Memory that a process has for itself, the shared pool left out. Owns the reading of /proc."""

from __future__ import annotations

import re
from pathlib import Path


def private_bytes(pid: int) -> int:
    """Anonymous memory resident now."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
