"""What a request says of itself: `{"priority": 70, "ttl": 600, …}`, from whoever sent the request, so checked.

Owns names, ranges and what is right in place of what is wrong. A wrong hint is left out and the others are kept. The
time taken does not grow with what is given. Must never know vLLM's objects.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockyard.common.messages.attach import (
    DEFAULT_PRIORITY,
    MAX_PIN_MS,
    MAX_PRIORITY,
    MAX_SESSION,
    MAX_TTL_MS,
    Hints,
)
from blockyard.engine.identity import bounded_name

UNKNOWN = "unknown"
WHOLE = "blockyard"
"""What holds the hints."""

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class RequestHints:
    """One request's hints; a default says nothing. Times in seconds, 0 means none."""

    priority: int = DEFAULT_PRIORITY
    ttl: float = 0.0
    session: str = ""
    no_store: bool = False
    release: bool = False
    pin: float = 0.0

    def message(self, request: str) -> Hints | None:
        """What the worker is told, None if that is nothing. `no_store` is the engine's own affair."""
        ttl_ms, pin_ms = _milliseconds(self.ttl), _milliseconds(self.pin)
        told = Hints(bounded_name(request), self.priority, ttl_ms, self.session, self.release, pin_ms)
        return None if told == Hints(told.request) else told


class Refusal(NamedTuple):
    """A hint that is left out; `line` says what it is and what would be right."""

    field: str
    line: str


class _Field(NamedTuple):
    is_right: Callable[[Any], bool]
    right: str


def parse(given: object) -> tuple[RequestHints, list[Refusal]]:
    """The hints that are right, and those that are not; None stands for a hint that is not given. Raises nothing."""
    if given is None:
        return RequestHints(), []
    if not isinstance(given, dict):
        return RequestHints(), [_refusal(WHOLE, WHOLE, given, f"a mapping of {', '.join(_FIELDS)}")]
    right: dict[str, Any] = {}
    wrong = []
    for name, field in _FIELDS.items():
        value = given.get(name)
        if value is None:
            continue
        if field.is_right(value):
            right[name] = value
        else:
            wrong.append(_refusal(name, name, value, field.right))
    # At most as many names as there are fields come before one that is unknown.
    unknown = next((name for name in given if name not in _FIELDS), None)
    if unknown is not None:
        wrong.append(Refusal(UNKNOWN, f"{_shown(unknown)} is no hint; known are {', '.join(_FIELDS)}"))
    return RequestHints(**right), wrong


def _whole(low: int, high: int) -> _Field:
    return _Field(lambda value: type(value) is int and low <= value <= high, f"a whole number from {low} to {high}")


def _seconds(most_ms: int) -> _Field:
    most = most_ms // 1000

    def is_right(value: Any) -> bool:
        return type(value) in (int, float) and 0 < value <= most

    return _Field(is_right, f"a number of seconds above 0, at most {most}")


def _flag() -> _Field:
    return _Field(lambda value: type(value) is bool, "true or false")


def _text(longest: int) -> _Field:
    def is_right(value: Any) -> bool:
        return type(value) is str and 0 < len(value) <= longest and _is_unicode(value)

    return _Field(is_right, f"a text of 1 to {longest} characters")


_FIELDS: dict[str, _Field] = {
    "priority": _whole(0, MAX_PRIORITY),
    "ttl": _seconds(MAX_TTL_MS),
    "session": _text(MAX_SESSION),
    "no_store": _flag(),
    "release": _flag(),
    "pin": _seconds(MAX_PIN_MS),
}


def _is_unicode(text: str) -> bool:
    """JSON may bring half of a surrogate pair, which no message can carry."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _refusal(field: str, name: str, value: object, right: str) -> Refusal:
    return Refusal(field, f"{name} is {_shown(value)}; it must be {right}")


def _shown(value: object) -> str:
    """A value cut to what a line can bear: it may be a megabyte, or nested so deeply that it cannot be shown."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}… of {len(value)} characters"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, bool | int | float):
        return repr(value)
    return f"a {type(value).__name__}"


def _milliseconds(seconds: float) -> int:
    return math.ceil(1000 * seconds)
