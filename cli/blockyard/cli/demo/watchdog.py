"""Owns the promise that nothing outlives its supervisor, even one killed by SIGKILL. It never decides anything.

Run as a program of its own, with the read end of a pipe on standard input whose write end only the supervisor
holds. Each line names a session to answer for (`+SID`) or to forget (`-SID`); end of file means that the
supervisor is gone.

Why not PR_SET_PDEATHSIG: grandchildren do not inherit it, and a server's engine processes are grandchildren;
and it fires when the *thread* that started the child ends. The mark in the environment covers a child that
was started but not yet named when the supervisor died: a child between fork and exec still holds the pipe, so
end of file comes later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from blockyard.cli.demo.process_table import in_session, marked

SCAN_PAUSE_S = 0.05
GIVE_UP_S = 10.0


def main(mark: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions = _read_sessions_until_end()
    return 0 if _kill_all(mark, sessions) else 1


def _read_sessions_until_end() -> set[int]:
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line[0] == "+":
            sessions.add(session)
        else:
            sessions.discard(session)
    return sessions


def _kill_all(mark: str, sessions: set[int]) -> bool:
    """Kills until two scans in a row find nothing: a victim may start another process during a scan."""
    give_up_at = time.monotonic() + GIVE_UP_S
    clean_scans = 0
    while clean_scans < 2 and time.monotonic() < give_up_at:
        victims = {pid for session in sessions for pid in in_session(session)} | set(marked(mark))
        victims.discard(os.getpid())
        for pid in victims:
            _kill(pid)
        clean_scans = 0 if victims else clean_scans + 1
        time.sleep(SCAN_PAUSE_S)
    return clean_scans == 2


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
