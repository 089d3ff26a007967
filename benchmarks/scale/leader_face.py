"""The leader as its HTTP clients see it: one connection kept open, a deadline for each answer. Owns the questions a run
asks; judges no answer.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

NOBODYS = "00" * 32
_SECONDS = 60.0


class NotAnswered(ConnectionError):
    """It answered with another status than 200, as one that does not lead does."""


class LeaderFace:
    """Use one per thread, or take turns: a lock keeps requests apart."""

    def __init__(self, host: str, port: int, timeout: float = _SECONDS) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout)
        self._lock = threading.Lock()

    def another(self) -> LeaderFace:
        """The same leader over a connection of its own."""
        return LeaderFace(self._connection.host, self._connection.port)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body; OSError when nobody answers."""
        with self._lock:
            try:
                self._connection.request("GET" if body is None else "POST", path, body)
                answer = self._connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                raise ConnectionError(f"{path}: {error}") from error

    def json(self, path: str, body: bytes | None = None) -> Any:
        """The answer to a question that must be answered."""
        status, content = self.ask(path, body)
        if status != 200:
            raise NotAnswered(f"{path}: {status} {content[:500]!r}")
        return json.loads(content)

    def answers(self, path: str = "/healthz") -> bool:
        """Whether somebody answers there."""
        try:
            return self.ask(path)[0] == 200
        except OSError:
            return False

    def leads(self) -> bool:
        """Whether it answers as leader."""
        return self.answers(f"/v1/where?key={NOBODYS}")

    def whole(self) -> bool:
        """Whether it leads and knows the claims of every registered worker."""
        try:
            status, content = self.ask(f"/v1/where?key={NOBODYS}")
        except OSError:
            return False
        return status == 200 and not json.loads(content)["partial"]

    def holders(self, key: str) -> set[str]:
        """Nodes that hold a key."""
        return {holder["node"] for holder in self.json(f"/v1/where?key={key}")["holders"]}

    def match(self, keys: Sequence[bytes]) -> dict[str, int]:
        """By node, how many of the keys it holds from the first on."""
        found = self.json("/v1/match", match_body(keys))["workers"]
        return {one["node"]: one["length"] for one in found}

    def metrics(self) -> dict[str, float]:
        """Each of its metrics, summed over labels."""
        text = self.ask("/metrics")[1].decode()
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def timed(self, path: str, body: bytes | None = None) -> float:
        """Seconds that an answer takes."""
        begun = time.perf_counter()
        status, content = self.ask(path, body)
        taken = time.perf_counter() - begun
        if status != 200:
            raise NotAnswered(f"{path}: {status} {content[:500]!r}")
        return taken


def match_body(keys: Sequence[bytes]) -> bytes:
    """Body of POST /v1/match."""
    return json.dumps({"keys": [key.hex() for key in keys]}).encode()
