"""Draining a worker and watching it. Owns when that is over; knows no HTTP."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import typer

from blockyard.cli.orders.api import Api, LeaderSays
from blockyard.cli.orders.waiting import INCOMPLETE, POLL_S, bar, move


def drain(api: Api, worker: str, timeout: float, wait: bool, as_json: bool) -> None:
    """Begin, or go on with, draining this worker; with `wait` until it is empty or that can't come about."""
    api.ask("POST", "/v1/drain", {"worker": worker})
    shown = _watched(api, worker, timeout, as_json) if wait else _drain_of(api, worker)
    state = shown["state"]
    if as_json:
        typer.echo(json.dumps({"worker": worker, **shown}))
    elif state == "done":
        typer.echo(f"{worker} is drained: {shown['copied']} chunks were copied; no chunk is on it alone")
    elif not wait:
        typer.echo(f"{worker} is being drained; `blockyard drain {worker}` watches it")
    else:
        left = "an unknown number of" if shown["left"] is None else shown["left"]
        why = f": {shown['reason']}" if shown["reason"] else f" within {timeout:g} s"
        typer.echo(f"{worker} is not drained{why}; {left} chunks are on it alone")
    if wait and state != "done":
        raise typer.Exit(INCOMPLETE)


def undo(api: Api, worker: str, as_json: bool) -> None:
    """Let the worker work as before."""
    answer = api.ask("DELETE", f"/v1/drain?worker={quote(worker)}")
    typer.echo(json.dumps(answer) if as_json else f"{worker} is drained no more")


def _watched(api: Api, worker: str, timeout: float, as_json: bool) -> dict[str, Any]:
    until = time.monotonic() + timeout
    with bar(f"drain {worker}", not as_json) as progress:
        while True:
            shown = _drain_of(api, worker)
            left = shown["left"]
            move(progress, shown["copied"], None if left is None else shown["copied"] + left)
            hopeless = shown["state"] == "refused" or (shown["state"] == "stuck" and left == shown["unplaceable"])
            if shown["state"] == "done" or hopeless or time.monotonic() > until:
                return shown
            time.sleep(POLL_S)


def _drain_of(api: Api, worker: str) -> dict[str, Any]:
    for found in api.workers():
        if found["node"] == worker:
            if found["drain"] is None:
                # Another leader leads, which knows of no drain.
                api.ask("POST", "/v1/drain", {"worker": worker})
                return {"state": "waiting", "left": None, "copied": 0, "unplaceable": None, "reason": ""}
            return dict(found["drain"])
    raise LeaderSays(f"worker {worker!r} is not registered any more")
