"""Log lines for operators: one a line, `key=value` fields, repeats held back.

Owns the format and the limit on repeats. Must never know what is worth logging. Fields are given as
`log.info("engine attached", extra=fields(engine=..., rank=...))`; the text before them is fixed, so that it
can be searched for and counted.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

_BURST = 5
_WINDOW = 10.0
_TEXTS = 256

_FIELDS = "blockyard_fields"
_TIME = "%Y-%m-%dT%H:%M:%S"


def fields(**values: object) -> dict[str, object]:
    """For `extra=`: what a line is about."""
    return {_FIELDS: values}


def set_up(level: str, role: str, stream: TextIO = sys.stderr) -> None:
    """Send this process's log to `stream`; `level` is a name such as "info"."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Line(role))
    handler.addFilter(HoldBack())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Line(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        at = f"{time.strftime(_TIME, time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        parts = [at, record.levelname.lower(), self._role, _one_line(record.getMessage())]
        parts += [f"{name}={_value(value)}" for name, value in getattr(record, _FIELDS, {}).items()]
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _value(value: object) -> str:
    text = _one_line(str(value))
    if text and not set(text) & set(' "='):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class HoldBack(logging.Filter):
    """Lets a few lines of one text through per window; the next one let through says how many were not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # Per text: when its window began, lines in it, lines held back.
        self._seen: dict[tuple[str, str], tuple[float, int, int]] = {}

    @property
    def texts(self) -> int:
        """How many texts it remembers."""
        return len(self._seen)

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, str(record.msg)), self._clock()
        began, lines, held = self._seen.pop(key, (now, 0, 0))
        if now - began >= _WINDOW:
            began, lines = now, 0
        if lines >= _BURST:
            self._seen[key] = (began, lines, held + 1)
            return False
        if held:
            setattr(record, _FIELDS, {**getattr(record, _FIELDS, {}), "held_back": held})
        self._seen[key] = (began, lines + 1, 0)
        if len(self._seen) > _TEXTS:
            del self._seen[next(iter(self._seen))]
        return True
