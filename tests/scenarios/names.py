"""Names for keys: a scenario says `a`, the cores get a digest. Owns both directions; digests are fixed by the name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from blockyard.common.identity import DIGEST_BYTES, Key
from scenarios.script import ScriptError


def digest(name: str) -> bytes:
    """32 bytes for any name."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


class Names:
    """All names that a scenario has used, in the order of their first use."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self._names: dict[Key, str] = {}

    def key(self, name: str) -> Key:
        if not name.isalnum():
            raise ScriptError(f"key {name!r}: must have letters and digits alone")
        key = self.keys.setdefault(name, digest(name))
        self._names[key] = name
        return key

    def parse(self, text: str) -> list[Key]:
        """`a,b,c`, or a range of numbers such as `k1..k9`."""
        first, dots, last = text.partition("..")
        if not dots:
            return [self.key(name) for name in text.split(",") if name]
        stem = first.rstrip("0123456789")
        if not last.startswith(stem):
            raise ScriptError(f"keys {text!r}: a range is like k1..k9")
        return [self.key(f"{stem}{at}") for at in range(int(first[len(stem) :]), int(last[len(stem) :]) + 1)]

    def of(self, key: Key) -> str:
        return self._names.get(key) or key.hex()[:8]

    def listed(self, keys: Iterable[Key]) -> str:
        """Names with blanks between."""
        return " ".join(self.of(key) for key in keys) or "nothing"
