"""Commands in namespaces of their own, as container runtimes make them. Owns the probing of what is permitted here."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

APART = (
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--ipc",
    "--mount",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--",
)
"""Prefix of a command that gets its own user, PID, IPC and mount namespaces. Its PID in ours is that of `unshare`,
whose death kills it.
"""


def as_user(user: int, group: int) -> tuple[str, ...]:
    """Prefix of a command that runs as nobody else's user, apart from our own processes.

    It may read every file, since this interpreter may lie in a folder of root's; it may not write to any.
    """
    reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    user_namespace = APART.index("--user")
    apart = (*APART[:user_namespace], *APART[user_namespace + 2 :])
    # A change of user undoes what unshare asked for, so it is asked for again.
    death = "--pdeathsig=KILL"
    return (*apart, "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *reading, death, "--")


@functools.cache
def _refusal(prefix: tuple[str, ...]) -> str:
    """Why a prefix cannot be used here; empty if it can."""
    if shutil.which(prefix[0]) is None:
        return f"{prefix[0]} is not installed"
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False, timeout=30)
    return tried.stderr.strip() or (f"{prefix[0]} fails" if tried.returncode else "")


def require(*prefix: str) -> tuple[str, ...]:
    """The prefix itself; skips the test, with the reason, where this machine does not permit it."""
    if reason := _refusal(prefix):
        pytest.skip(f"not permitted here: {reason}")
    return prefix
