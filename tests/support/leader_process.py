"""A real leader in a process of its own, for tests. Owns the process, its log and its rough handling."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from support.child_process import ChildProcess

T = TypeVar("T")

_START_TIMEOUT_S = 20.0

_PROGRAM = """
import sys
from blockyard.common.config import load_leader
from blockyard.leader.main import run
sys.exit(run(load_leader(dict(zip(sys.argv[1::2], sys.argv[2::2])), None)))
"""

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LeaderProcess(ChildProcess):
    """`with LeaderProcess(etcd.endpoint, "a") as leader:` gives a leader that serves HTTP at `leader.http`.

    `program` is run before the leader's own code.
    """

    def __init__(
        self, etcd: str, node: str, *, cluster: str = "test", ttl: str = "2s", program: str = "", **flags: str
    ) -> None:
        super().__init__()
        self._program = f"{program}\n{_PROGRAM}"
        self._flags = {
            "etcd": etcd,
            "cluster": cluster,
            "node_id": node,
            "listen": "127.0.0.1:0",
            "http_listen": "127.0.0.1:0",
            "insecure": "true",
            "lease_ttl": ttl,
        } | flags
        handle, name = tempfile.mkstemp(prefix=f"blockyard-leader-{node}-", suffix=".log")
        self._log = Path(name)
        open(handle, "wb").close()
        self.node = node
        self.link = ""
        self.http = ""

    def start(self) -> None:
        """Start, again after a kill, and wait until it listens."""
        said = len(self.log())
        words = [word for pair in self._flags.items() for word in pair]
        self.launch([sys.executable, "-c", self._program, *words], self._log)
        found = wait_for(lambda: self._listening(said), _START_TIMEOUT_S, "the leader listens", self.log)
        self.link, self.http = found[1], found[2]

    def get(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Status and JSON (or text, of /metrics) of a GET, or of a POST when there is a body."""
        return _answer(urllib.request.Request(f"http://{self.http}{path}", data=body))

    def order(self, path: str, body: object = None, method: str = "POST") -> tuple[int, Any]:
        """Status and JSON of a request that has something done."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return _answer(urllib.request.Request(f"http://{self.http}{path}", data, headers, method=method))

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the series of `blockyard_leader_<name>` with these labels; 0 if there is none yet."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == f"blockyard_leader_{name}" and labels.items() <= sample.labels.items()
        )

    def descriptors(self) -> int:
        """Descriptors that the leader has open now."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def leads(self) -> bool:
        """Whether it answers as leader."""
        return self.get("/readyz")[0] == 200

    def knows_workers(self) -> bool:
        """Whether it leads and has read etcd's list of workers in this term."""
        status, answer = self.get("/readyz")
        return status == 200 and all(item["what"] != "membership" for item in answer["degraded"])

    def wait_leads(self, timeout: float = 20.0) -> None:
        """Wait until it answers as leader and knows who is registered."""
        wait_for(self.knows_workers, timeout, f"{self.node} leads", self.log)

    def log(self) -> str:
        """Everything it has said."""
        return self._log.read_text(errors="replace")

    def _listening(self, said: int) -> re.Match[str] | None:
        if not self.alive:
            raise RuntimeError(f"the leader ended:\n{self.log()}")
        return re.search(r"leader serves link=(\S+) http=(\S+)", self.log()[said:])

    def remove_files(self) -> None:
        self._log.unlink(missing_ok=True)


def wait_for(found: Callable[[], T | None], timeout: float, what: str, detail: Callable[[], str] = lambda: "") -> T:
    """Ask until the answer is true and return it; after `timeout` seconds it is an error."""
    deadline = time.monotonic() + timeout
    while True:
        answer = found()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}\n{detail()[-4000:]}")
        time.sleep(0.03)


def _answer(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with _opener.open(request, timeout=10) as answer:
            return answer.status, _content(answer.headers["Content-Type"], answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _content(error.headers["Content-Type"], error.read())


def _content(kind: str, body: bytes) -> Any:
    return json.loads(body) if kind.startswith("application/json") else body.decode()
