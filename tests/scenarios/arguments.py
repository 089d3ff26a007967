"""One command's words: its verb, what it is about, and options. Owns that none is misspelt; must never know a verb."""

from __future__ import annotations

import re

from scenarios.script import ScriptError

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_MS = {"ms": 1, "s": 1000}


def milliseconds(text: str) -> int:
    """`200ms` or `5s`."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ScriptError(f"time {text!r}: must be like 200ms or 5s")
    return round(float(found[1]) * _MS[found[2]])


class Command:
    """Taken apart word by word; `end` complains of what nobody took."""

    def __init__(self, text: str) -> None:
        self.verb, *words = text.split()
        self._words = [word for word in words if "=" not in word]
        self._options = dict(word.split("=", 1) for word in words if "=" in word)

    def word(self, what: str) -> str:
        """The next word, which has to be there."""
        if not self._words:
            raise ScriptError(f"{self.verb}: {what} is missing")
        return self._words.pop(0)

    def may(self, word: str) -> bool:
        """Whether this word stands anywhere; it counts as taken."""
        if word not in self._words:
            return False
        self._words.remove(word)
        return True

    def optional(self, default: str) -> str:
        """The next word, if there is one."""
        return self._words.pop(0) if self._words else default

    def option(self, name: str, default: str = "") -> str:
        return self._options.pop(name, default)

    def required(self, name: str) -> str:
        """An option that has to be there."""
        if name not in self._options:
            raise ScriptError(f"{self.verb}: {name}= is missing")
        return self._options.pop(name)

    def number(self, name: str, default: int) -> int:
        """An option that is a whole number."""
        text = self.option(name, str(default))
        if not text.isdigit():
            raise ScriptError(f"{self.verb}: {name}={text} must be a whole number")
        return int(text)

    def rest(self) -> dict[str, str]:
        """All options that nobody took so far."""
        taken, self._options = self._options, {}
        return taken

    def end(self) -> None:
        """Everything has been taken."""
        left = [*self._words, *(f"{name}=" for name in self._options)]
        if left:
            raise ScriptError(f"{self.verb}: {', '.join(left)} is not for this command")
