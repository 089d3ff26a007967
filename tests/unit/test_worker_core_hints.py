"""What a worker keeps of its requests' words: until their end, of live sessions alone, and not without bound."""

from __future__ import annotations

from typing import Any

import pytest

from blockyard.common.codec import PREFIX_BYTES, Decoder, FrameRefused, encode
from blockyard.common.messages import attach
from blockyard.worker.core import events
from blockyard.worker.core.hints import Hints
from support.worker_core import Engine, Node, answer

SAID = attach.Hints("q", priority=70, ttl_ms=1500, session="talk", release=True, pin_ms=250)
KEPT = Hints(priority=70, ttl=1.5, session="talk", release=True, pin=0.25)


@pytest.fixture
def node() -> Node:
    return Node()


def kept(node: Node, engine: Engine, request: str = "q") -> Hints | None:
    return node.core.hints.get(engine.scheduler, request)


def test_hints_are_kept_until_the_request_ends(node: Node) -> None:
    engine, other = node.engine("a"), node.engine("b")
    assert engine.says(SAID) == []
    assert kept(node, engine) == KEPT
    assert kept(node, other) is None and kept(node, engine, "other") is None
    other.says(attach.Finish("q"))
    assert kept(node, engine) == KEPT
    engine.says(attach.Finish("q"))
    assert kept(node, engine) is None


@pytest.mark.parametrize("end", ["link", "process", "bye", "fault", "drain", "again"])
def test_hints_end_with_their_session(node: Node, end: str) -> None:
    engine = node.engine()
    engine.says(SAID)
    session = engine.scheduler
    match end:
        case "link":
            node.do(events.SessionClosed(session))
        case "process":
            node.do(events.ProcessGone(session))
        case "bye":
            engine.says(attach.Bye())
        case "fault":
            engine.says(attach.Release(1, b"ragged"))
        case "drain":
            node.do(events.DrainAsked("stopping"))
        case "again":
            engine.attach_scheduler(previous=session, previous_boot=node.core.settings.boot_id)
    assert node.core.hints.get(session, "q") is None
    assert len(node.core.hints) == 0
    assert kept(node, engine) is None


def test_hints_of_more_requests_than_a_session_may_have_are_dropped() -> None:
    node = Node(max_hints_per_session=2)
    engine, other = node.engine("a"), node.engine("b")
    for name in ("q", "r", "s"):
        engine.says(attach.Hints(name, priority=1))
    engine.says(attach.Hints("q", priority=2))
    other.says(attach.Hints("q", priority=3))
    priorities = [hints and hints.priority for hints in (kept(node, engine, name) for name in ("q", "r", "s"))]
    assert priorities == [2, 1, None]
    assert node.count("hints_dropped_total") == 1
    node.core.show_gauges()
    assert node.count("hinted_requests") == 3


def test_hints_are_counted_by_name(node: Node) -> None:
    engine = node.engine()
    engine.says(SAID)
    engine.says(attach.Hints("r", session="talk"))
    named = {name: node.count("hints_total", field=name) for name in ("priority", "ttl", "session", "release", "pin")}
    assert named == {"priority": 1, "ttl": 1, "session": 2, "release": 1, "pin": 1}


def test_a_rank_has_no_requests(node: Node) -> None:
    out = node.engine().says(SAID, rank=0)
    assert "Hints is not a message for a rank" in answer(out, attach.Closing).reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 101},
        {"priority": -1},
        {"priority": True},
        {"ttl_ms": -1},
        {"ttl_ms": attach.MAX_TTL_MS + 1},
        {"pin_ms": attach.MAX_PIN_MS + 1},
        {"session": "x" * (attach.MAX_SESSION + 1)},
        {"release": 1},
        {"request": ""},
    ],
)
def test_the_worker_checks_for_itself(wrong: dict[str, Any]) -> None:
    frame = encode(attach.Hints(**({"request": "q"} | wrong)), attach.MAX_FRAME)
    with pytest.raises(FrameRefused, match="malformed"):
        Decoder[attach.FromEngine](attach.FromEngine).decode(frame[PREFIX_BYTES:])
