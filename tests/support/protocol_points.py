"""Points of a store and a load at which an engine's process, or its worker, is made to die in tests.

Owns the list and how the code under test is interrupted there: a named function of the engine side does something first
or last, once. Must never know what is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockyard.common.messages import attach
from blockyard.engine import session
from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.jobs import BlockRange
from blockyard.engine.rank_client import RankClient
from blockyard.engine.rank_link import RankLink
from blockyard.engine.scheduler_link import SchedulerLink

Act = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Point:
    """Before or after the first call of `method`; with `message`, the first call that sends one of this kind."""

    owner: Any
    method: str
    after: bool = False
    message: type | None = None


ATTACHING = {
    "before hello": Point(session, "_send_hello"),
    "hello sent": Point(session, "_send_hello", after=True),
}
ATTACHING_RANK = ATTACHING | {"memory not mapped": Point(RankClient, "_adopt")}
IN_A_JOB = {
    "before resolve": Point(RankLink, "resolve"),
    "resolve sent": Point(RankLink, "_receive"),
    "places known": Point(CpuCopier, "begin"),
    "in the copy": Point(CpuCopier, "_in_the_copy"),
    "copied": Point(CpuCopier, "finish", after=True),
    "before done": Point(RankLink, "done"),
    "done sent": Point(RankLink, "done", after=True),
}
STORE_OF_SCHEDULER = {
    "before fill": Point(SchedulerLink, "send", message=attach.Fill),
    "fill sent": Point(SchedulerLink, "send", after=True, message=attach.Fill),
}
LOAD_OF_SCHEDULER = {
    "before acquire": Point(SchedulerLink, "send", message=attach.Acquire),
    "acquire sent": Point(SchedulerLink, "send", after=True, message=attach.Acquire),
    "before release": Point(SchedulerLink, "send", message=attach.Release),
    "release sent": Point(SchedulerLink, "send", after=True, message=attach.Release),
}
POINTS = ATTACHING_RANK | IN_A_JOB | STORE_OF_SCHEDULER | LOAD_OF_SCHEDULER


def arm(name: str, act: Act, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Do `act` once at this point; `patch(owner, name, value)` replaces a function."""
    point = POINTS[name]
    once = _Once(act)
    if name == "in the copy":
        for method in ("store", "load"):
            patch(CpuCopier, method, _half_way(getattr(CpuCopier, method), once))
        return
    original = getattr(point.owner, point.method)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        concerned = point.message is None or any(isinstance(one, point.message) for one in arguments)
        if concerned and not point.after:
            once()
        result = original(*arguments, **named)
        if concerned and point.after:
            once()
        return result

    patch(point.owner, point.method, interrupted)


class _Once:
    def __init__(self, act: Act) -> None:
        self._act = act
        self._done = False

    def __call__(self) -> None:
        if not self._done:
            self._done = True
            self._act()


def _half_way(original: Any, once: _Once) -> Any:
    """The second chunk's copy stops when half of its pages are copied."""
    calls = 0

    def copy(copier: CpuCopier, *arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            half = [_first_half(one) if isinstance(one, BlockRange) else one for one in arguments]
            original(copier, *half)
            once()
        return int(original(copier, *arguments))

    return copy


def _first_half(blocks: BlockRange) -> BlockRange:
    return BlockRange(blocks.block_ids[: len(blocks.block_ids) // 2], blocks.first_page, blocks.group)
