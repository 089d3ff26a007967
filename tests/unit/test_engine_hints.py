"""What a request may say of itself: right hints are taken, wrong ones left out, and nothing fails on either."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard.common.codec import encode
from blockyard.common.identity import fingerprint
from blockyard.common.messages import attach
from blockyard.common.metrics.engine import HINT
from blockyard.engine.hint_desk import HintDesk
from blockyard.engine.hints import RequestHints, parse
from blockyard.engine.identity import EngineIdentity
from blockyard.engine.scheduler_client import SchedulerClient

NAMES = ("priority", "ttl", "session", "no_store", "release", "pin")
REFUSED = "blockyard_engine_hints_refused_total"
LONG_LINE = 200


def one_word(value: Any) -> str:
    """A value's name in a test's id: some cannot be written down."""
    return value if isinstance(value, str) and value.isidentifier() and len(value) < LONG_LINE else type(value).__name__


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_every_hint_is_read() -> None:
    said = {"priority": 0, "ttl": 604_800, "session": "s" * 128, "no_store": True, "release": False, "pin": 0.5}
    assert parse(said) == (RequestHints(0, 604_800, "s" * 128, True, False, 0.5), [])
    assert parse(dict.fromkeys(NAMES)) == parse({}) == parse(None) == (RequestHints(), [])


@pytest.mark.parametrize(
    ("name", "value", "shown", "right"),
    [
        ("priority", 101, "101", "from 0 to 100"),
        ("priority", -1, "-1", "from 0 to 100"),
        ("priority", True, "True", "from 0 to 100"),
        ("priority", 50.0, "50.0", "a whole number"),
        ("priority", 10**5000, "a number of 16610 bits", "a whole number"),
        ("ttl", -1, "-1", "above 0, at most 604800"),
        ("ttl", 0, "0", "above 0"),
        ("ttl", 604_801, "604801", "at most 604800"),
        ("ttl", math.nan, "nan", "seconds"),
        ("ttl", math.inf, "inf", "seconds"),
        ("ttl", True, "True", "seconds"),
        ("ttl", "60", "'60'", "seconds"),
        ("pin", 3601, "3601", "at most 3600"),
        ("session", "", "''", "1 to 128 characters"),
        ("session", "x" * (1 << 20), f"'{'x' * 40}'… of 1048576 characters", "1 to 128 characters"),
        ("session", "\ud800", r"'\ud800'", "1 to 128 characters"),
        ("session", 7, "7", "a text"),
        ("no_store", 1, "1", "true or false"),
        ("release", "yes", "'yes'", "true or false"),
        ("release", nested(100_000), "a list", "true or false"),
    ],
    ids=one_word,
)
def test_a_wrong_hint_is_left_out_and_the_others_are_kept(name: str, value: Any, shown: str, right: str) -> None:
    other = "ttl" if name == "priority" else "priority"
    hints, refused = parse({name: value, other: 7})
    assert hints == RequestHints(**{other: 7})
    (refusal,) = refused
    assert refusal.field == name
    assert refusal.line.startswith(f"{name} is {shown}; it must be ") and right in refusal.line
    assert len(refusal.line) < LONG_LINE


@pytest.mark.parametrize("given", [[], "text", 7, True, nested(100_000), math.nan, b"bytes"], ids=one_word)
def test_hints_that_are_no_mapping_are_refused_as_a_whole(given: Any) -> None:
    hints, (refusal,) = parse(given)
    assert hints == RequestHints()
    assert refusal.field == "blockyard" and "it must be a mapping of priority, ttl" in refusal.line


def test_unknown_names_are_refused_once_whatever_their_number() -> None:
    hints, (refusal,) = parse({f"x{number}" * 100: nested(9) for number in range(1000)} | {"priority": 3})
    assert hints == RequestHints(priority=3)
    assert refusal.field == "unknown" and "is no hint; known are priority, ttl" in refusal.line
    assert len(refusal.line) < LONG_LINE


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(JSON | st.dictionaries(st.sampled_from(NAMES) | st.text(), JSON))
def test_whatever_comes_is_taken_or_refused_and_fits_a_message(given: Any) -> None:
    hints, refused = parse(given)
    assert {refusal.field for refusal in refused} <= set(HINT.values)
    assert len({refusal.field for refusal in refused}) == len(refused)
    if isinstance(given, dict):
        named = {name for name in NAMES if given.get(name) is not None}
        wrong = {refusal.field for refusal in refused} & set(NAMES)
        assert wrong <= named
        for name in named - wrong:
            assert getattr(hints, name) == given[name]
    message = hints.message("r")
    if message is not None:
        assert attach.Hints("r") != message
        encode(message, attach.MAX_FRAME)


def test_what_is_the_engines_own_or_says_nothing_is_not_told() -> None:
    assert RequestHints(no_store=True, priority=50).message("r") is None
    told = RequestHints(ttl=0.0001, pin=1.5, session="s").message("r" * 1000)
    assert told is not None
    assert (told.ttl_ms, told.pin_ms, told.session, len(told.request)) == (1, 1500, "s", 256)


def test_a_request_is_told_once_a_session_and_until_its_end() -> None:
    desk, hints = HintDesk(), attach.Hints("r", priority=1)
    desk.put(hints)
    assert (desk.take("other"), desk.take("r"), desk.take("r")) == (None, hints, None)
    desk.session_ended()
    assert (desk.take("r"), desk.take("r")) == (hints, None)
    desk.finished("r")
    assert desk.take("r") == hints
    assert desk.drop("r")
    assert desk.take("r") is None and not desk.drop("r")


# What vLLM shows of a request.


def request(params: Any, name: str = "r", session_id: Any = None) -> Any:
    return SimpleNamespace(request_id=name, kv_transfer_params=params, session_id=session_id)


class Told:
    """An engine's hints, its clock, and what it counted."""

    def __init__(self) -> None:
        pytest.importorskip("vllm", reason="vLLM is not installed")
        from blockyard.engine.vllm.hinting import Hinting

        self.now = 100.0
        self.client = SchedulerClient("/nowhere", EngineIdentity("e", "m", fingerprint({})), [])
        self.hinting = Hinting(self.client, lambda: self.now)

    def counted(self) -> dict[str, float]:
        return {label: n for message in self.client._report.take() for name, label, n in message.counts}


def test_wrong_hints_are_counted_by_name_and_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    with caplog.at_level(logging.WARNING, logger="blockyard"):
        for wrong in ({"priority": 101}, {"priority": 102}, {"colour": 1, "ttl": -1}, 7):
            told.hinting.begins(request({"blockyard": wrong}))
        told.now += 60.0
        told.hinting.begins(request("no mapping"))
    assert told.counted() == {"priority": 2, "unknown": 1, "ttl": 1, "blockyard": 2}
    assert [record.getMessage() for record in caplog.records if record.name.startswith("blockyard")] == [
        "blockyard: hint left out: priority is 101; it must be a whole number from 0 to 100 (request r)",
        "blockyard: hint left out: kv_transfer_params is a str, no mapping (request r)",
    ]


def test_parameters_on_which_vllm_would_fail_are_taken_away() -> None:
    wrong = request("no mapping")
    Told().hinting.begins(wrong)
    assert wrong.kv_transfer_params is None


def test_no_store_lasts_as_long_as_the_request() -> None:
    hinting = Told().hinting
    hinting.begins(request({"blockyard": {"no_store": True, "ttl": 0}}))
    assert not hinting.may_store("r") and hinting.may_store("other")
    hinting.ends("r")
    assert hinting.may_store("r")


@pytest.mark.parametrize(
    ("params", "session_id", "session"),
    [
        (None, "theirs", "theirs"),
        ({"do_remote_prefill": True}, "theirs", "theirs"),
        ({"blockyard": {"session": "ours"}}, "theirs", "ours"),
        (None, "x" * 129, ""),
        (None, 7, ""),
        (None, None, ""),
    ],
)
def test_vllms_session_id_stands_where_no_session_is_given(params: Any, session_id: Any, session: str) -> None:
    told = Told()
    told.hinting.begins(request(params, session_id=session_id))
    kept = told.client._hints.take("r")
    assert (kept.session if kept else "") == session
    assert told.counted() == {}
