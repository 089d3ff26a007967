"""One process of an engine that stops itself at a protocol point, to be killed there.

    python -m support.dying_engine SOCKET ENGINE rank|scheduler POINT

It says "attached" once it is, obeys orders from its standard input, one JSON list a line, and says "at POINT" right
before it stops. `Dying` is the test's end of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from blockyard.engine.jobs import CopyJob
from blockyard.engine.scheduler_client import Grant
from support.closing import Closing
from support.engine_side import EngineSide, key_of, wait_until
from support.protocol_points import arm

TESTS = Path(__file__).resolve().parents[1]


class Dying(Closing):
    """`with Dying(socket, "victim", "rank", "in the copy") as child:`; `wait_at` returns when it has stopped."""

    def __init__(self, socket: Path, engine: str, role: str, point: str) -> None:
        self.point = point
        command = [sys.executable, "-m", "support.dying_engine", str(socket), engine, role, point]
        self._process = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def order(self, *words: object) -> None:
        """Tell it what to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def wait_at(self) -> None:
        """Wait until it stands at its point, stopped."""
        assert self.hear() == f"at {self.point}"
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._process.communicate()


def main(socket: str, engine: str, role: str, point: str) -> None:
    def stop() -> None:
        print(f"at {point}", flush=True)
        # To this thread: any other would stop a moment after this one went on.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    arm(point, stop)
    act = (_rank if role == "rank" else _scheduler)(Path(socket), engine)
    print("attached", flush=True)
    for line in sys.stdin:
        print(act(*json.loads(line)), flush=True)


def _rank(socket: Path, engine: str) -> Any:
    side = EngineSide(socket, name=engine, with_scheduler=False).__enter__()
    wait_until(lambda: side.rank.state == "attached", "attached")

    def act(kind: Any, job: int, grant: int, numbers: list[int]) -> object:
        keys = [key_of(number) for number in numbers]
        for index, key in enumerate(keys):
            side.write(index, key)
        side.rank.submit(CopyJob(job, kind, keys, [side.chunk(index) for index in range(len(keys))], grant))
        return [state.label for state in side.result().states]

    return act


def _scheduler(socket: Path, engine: str) -> Any:
    side = EngineSide(socket, name=engine, with_rank=False).__enter__()
    wait_until(lambda: side.scheduler.state == "attached", "attached")
    grants: list[Grant] = []

    def act(what: str, job: int, numbers: list[int]) -> object:
        keys = [key_of(one) for one in numbers]
        if what == "fill":
            return side.scheduler.fill(job, "request", [side.run(keys)])
        if what == "acquire":
            grants.append(side.ask_until_hit(keys))
            return grants[-1].number
        return side.scheduler.release(grants[-1])

    return act


if __name__ == "__main__":
    main(*sys.argv[1:])
