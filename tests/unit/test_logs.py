"""Log lines: one a line whatever is in them, with repeats held back and counted."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from blockyard.common import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    target = io.StringIO()
    logs.set_up("info", "worker", target)
    yield target
    root.handlers[:] = before
    root.setLevel(level)


def test_fields_are_quoted_where_they_need_it(stream: io.StringIO) -> None:
    logging.getLogger("t").info("engine attached", extra=logs.fields(rank=0, reason='a "b" c=d', empty=""))
    line = stream.getvalue()
    assert line.endswith('info worker engine attached rank=0 reason="a \\"b\\" c=d" empty=""\n')


def test_what_a_peer_said_cannot_forge_a_line(stream: io.StringIO) -> None:
    logging.getLogger("t").warning("frame refused", extra=logs.fields(detail="x\n2026 info worker all is well"))
    assert stream.getvalue().count("\n") == 1


def test_levels_below_the_one_asked_for_are_dropped(stream: io.StringIO) -> None:
    logging.getLogger("t").debug("detail")
    assert stream.getvalue() == ""


def test_repeats_are_held_back_and_counted() -> None:
    now = 0.0
    held_back = logs.HoldBack(lambda: now)
    let_through = [held_back.filter(record("again")) for _ in range(20)]
    assert let_through == [True] * 5 + [False] * 15
    assert held_back.filter(record("another text"))
    now = 10.0
    later = record("again")
    assert held_back.filter(later)
    assert later.__dict__["blockyard_fields"] == {"held_back": 15}


def test_texts_remembered_are_bounded() -> None:
    held_back = logs.HoldBack(lambda: 0.0)
    for number in range(10_000):
        held_back.filter(record(f"text {number}"))
    assert held_back.texts < 1000


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("t", logging.INFO, "file", 1, text, None, None)
