"""A file system that never answers, mounted over a folder as one worker sees it: FUSE without anybody behind it.

Owns both ends of that: what is mounted in the worker before its own code, and the file by which a test takes it away.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MOUNT = """
import ctypes, os, pathlib, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise SystemExit(name + ": " + os.strerror(ctypes.get_errno()))
user = os.geteuid()
call("unshare", {flags})
if user:
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {{user}} 1"), ("gid_map", f"0 {{os.getegid()}} 1")):
        pathlib.Path("/proc/self/" + name).write_text(line)
call("mount", b"none", b"/", None, 0x4000 | 1 << 18, None)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{device}},rootmode=40000,user_id=0,group_id=0"
call("mount", b"nobody", {folder!r}, b"fuse", 0, options.encode())
def heal():
    while not os.path.exists({healed!r}):
        time.sleep(0.02)
    call("umount2", {folder!r}, 2)
    os.close(device)
threading.Thread(target=heal, daemon=True).start()
"""
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000


class HangingMount:
    """`WorkerProcess(program=mount.program)` finds a hanging file system at `folder`; after `heal`, what lies below."""

    def __init__(self, folder: Path, beside: Path) -> None:
        self._healed = beside / "healed"
        flags = _NEW_MOUNTS | (_NEW_USER if os.geteuid() else 0)
        self.program = _MOUNT.format(flags=flags, folder=os.fsencode(folder), healed=str(self._healed))
        tried = subprocess.run(
            [sys.executable, "-c", self.program], capture_output=True, text=True, timeout=30, check=False
        )
        if tried.returncode:
            pytest.skip(f"not permitted here: {tried.stderr.strip().splitlines()[-1]}")

    def heal(self) -> None:
        self._healed.touch()
