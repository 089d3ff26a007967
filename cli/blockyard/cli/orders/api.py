"""Asking the leader over its HTTP API: finding the one that leads, with a deadline. It decides nothing from answers."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from blockyard.common.config.address import parse_address
from blockyard.common.errors import BlockyardError

ANSWER_S = 5.0
ELECTION_S = 15.0
"""How long a cluster without a leader is asked again: longer than a lease lasts by default."""

_PAUSE_S = 0.5
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LeaderSays(BlockyardError):
    """The leader cannot be asked, or will not have it; the message is one line."""


class _NoAnswer(Exception):
    """Nobody is there, or says nothing in time."""


class Api:
    """`addresses` are of any leaders, with commas between. One that stands by names the one that leads; where none
    answers that did before, all are tried again for as long as an election may take.
    """

    def __init__(self, addresses: str) -> None:
        self._given = addresses.split(",")
        for address in self._given:
            try:
                parse_address(address)
            except ValueError:
                raise LeaderSays(f"--leader {address!r}: must be HOST:PORT, such as 127.0.0.1:7500") from None
        self._address, *self._untried = self._given
        self._heard = False

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The answer of the leader that leads. Raises LeaderSays with its words where it refuses."""
        until = time.monotonic() + ELECTION_S
        while True:
            try:
                status, answer = self._once(method, path, body)
            except _NoAnswer as error:
                self._go_elsewhere(error, time.monotonic() < until)
                continue
            self._heard, self._untried = True, list(self._given)
            if status < 300:
                return answer
            if status != 503 or time.monotonic() > until:
                raise LeaderSays(f"{self._address}: {answer.get('error', f'status {status}')}")
            self._follow(answer.get("leader"))

    def _follow(self, leader: object) -> None:
        """Ask the one that is named, or the same again after a moment."""
        if isinstance(leader, Mapping) and leader.get("http") not in (None, "", self._address):
            self._address = str(leader["http"])
        else:
            time.sleep(_PAUSE_S)

    def _go_elsewhere(self, error: _NoAnswer, again: bool) -> None:
        if not self._untried:
            if not (self._heard and again):
                raise LeaderSays(f"no leader answers at {self._address}: {error}") from None
            time.sleep(_PAUSE_S)
            self._untried = list(self._given)
        self._address = self._untried.pop(0)

    def workers(self) -> list[dict[str, Any]]:
        """Every registered worker."""
        return list(self.ask("GET", "/v1/workers")["workers"])

    def orders(self, cause: str) -> list[dict[str, Any]]:
        """The orders of one cause."""
        return list(self.ask("GET", f"/v1/orders?cause={urllib.parse.quote(cause)}")["orders"])

    def _once(self, method: str, path: str, body: object) -> tuple[int, dict[str, Any]]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self._address}{path}", data, headers, method=method)
        try:
            with _opener.open(request, timeout=ANSWER_S) as answer:
                return answer.status, _object(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _object(error.read())
        except (OSError, http.client.HTTPException) as error:
            raise _NoAnswer(_reason(error)) from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": "the answer is not a leader's"}


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return " ".join(str(reason).split()) or type(error).__name__
