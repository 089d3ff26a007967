"""Waiting for what was ordered, and saying how it went. Owns the tables and bars; knows no HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from blockyard.cli.orders.api import Api, LeaderSays

INCOMPLETE = 3
"""Exit code: not all of what was asked has come about."""

POLL_S = 0.3
_GRACE_S = 5.0
"""How long after their deadline orders may take to be entered as expired."""

Json = Mapping[str, Any]


@contextmanager
def bar(words: str, shown: bool) -> Iterator[Progress | None]:
    """A progress bar with one task, on standard error, if it is a terminal and wanted."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(words, total=None)
        yield progress


def move(progress: Progress | None, done: int, total: int | None) -> None:
    """Show how far it is."""
    if progress is not None:
        progress.update(progress.task_ids[0], completed=done, total=total)


def follow(api: Api, answer: Json, deadline_s: float, as_json: bool) -> None:
    """Wait until the orders of an answer are over, and tell how each went; ends with INCOMPLETE if one failed."""
    until, orders = time.monotonic() + deadline_s + _GRACE_S, api.orders(answer["cause"])
    with bar(answer["cause"], not as_json) as progress:
        while any(_is_open(order) for order in orders):
            if time.monotonic() > until:
                raise LeaderSays(f"{answer['cause']}: its orders did not end in time")
            time.sleep(POLL_S)
            orders = api.orders(answer["cause"]) or orders
            move(progress, sum(not _is_open(order) for order in orders), len(orders))
    complete = all(order["state"] == "done" and not order["left"] for order in orders) and not answer.get("missing")
    if as_json:
        typer.echo(json.dumps({**answer, "complete": complete, "orders": orders}))
    else:
        _tell(answer, orders)
    if not complete:
        raise typer.Exit(INCOMPLETE)


def _is_open(order: Json) -> bool:
    return order["state"] in ("waiting", "sent")


def _tell(answer: Json, orders: list[dict[str, Any]]) -> None:
    counts = [f"{value} {name}" for name, value in answer.items() if name not in ("epoch", "partial", "cause")]
    console = Console()
    console.print(f"{answer['cause']}: {', '.join(counts)}", highlight=False)
    if not orders:
        return
    table = Table(box=SIMPLE_HEAD)
    for name in ("worker", "order", "state", "chunks", "left", "reason"):
        table.add_column(name)
    for order in orders:
        cells = (order["worker"], order["kind"], order["state"], order["count"], order["left"], order["reason"])
        table.add_row(*map(str, cells))
    console.print(table)
