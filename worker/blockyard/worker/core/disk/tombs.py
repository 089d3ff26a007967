"""What was purged while directories were still being read: it must not come back with what is found in them.

Owns a bounded memory of it, which is of no use any more once every directory is known.
"""

from blockyard.common.identity import Fingerprint, Key

MAX_TOMBS = 65536
"""Keys, and worlds, that can be remembered."""


class Tombs:
    """`buried` says whether a copy that is found now is of something that was purged."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._worlds: set[Fingerprint] = set()

    def bury(self, fingerprint: Fingerprint, keys: list[Key]) -> bool:
        """Remember a world, unless it is empty, and keys; False if that would be too many."""
        if len(self._keys) + len(keys) > MAX_TOMBS or len(self._worlds) >= MAX_TOMBS:
            return False
        self._keys.update(keys)
        if fingerprint:
            self._worlds.add(fingerprint)
        return True

    def buried(self, fingerprint: Fingerprint, key: Key) -> bool:
        return key in self._keys or fingerprint in self._worlds

    def clear(self) -> None:
        self._keys.clear()
        self._worlds.clear()
