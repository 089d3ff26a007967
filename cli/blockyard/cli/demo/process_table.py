"""Owns reading /proc: who descends from whom, who shares a session, who carries a mark. It never ends a
process.

Only the standard library, so that the watchdog starts in milliseconds. Processes vanish while they are being
read; that is normal and means "not there".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    pid: int
    parent: int
    session: int
    state: str

    def is_zombie(self) -> bool:
        return self.state in ("Z", "X")


def all_processes() -> list[ProcessEntry]:
    entries = (read_entry(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return [entry for entry in entries if entry is not None]


def read_entry(pid: int) -> ProcessEntry | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # The command name may hold spaces and brackets; the fields start after its last closing one.
    state, parent, _group, session, *_ = stat[stat.rindex(")") + 2 :].split()
    return ProcessEntry(pid, int(parent), int(session), state)


def descendants(root: int) -> list[int]:
    """Living processes below `root`, parents before children; `root` itself is not among them."""
    children: dict[int, list[int]] = {}
    for entry in all_processes():
        if not entry.is_zombie():
            children.setdefault(entry.parent, []).append(entry.pid)
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(0), [])
        found += below
        pending += below
    return found


def in_session(session: int) -> list[int]:
    """Living members of a session: a server's children stay in it also after their parent has died."""
    return [entry.pid for entry in all_processes() if entry.session == session and not entry.is_zombie()]


def marked(mark: str) -> list[int]:
    """Processes started with `mark` (NAME=value) in their environment."""
    wanted = mark.encode()
    return [pid for pid in _pids_with_own_memory() if wanted in _environment(pid)]


def title(pid: int) -> str:
    """The command line as `ps` shows it, or "" for a process that is gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").strip().decode(errors="replace")


def _pids_with_own_memory() -> list[int]:
    return [entry.pid for entry in all_processes() if not entry.is_zombie()]


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
