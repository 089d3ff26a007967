"""What an eviction policy is. Owns the interface; must never know what a chunk is beyond its key."""

from collections.abc import Callable, Iterable
from typing import Protocol

from blockyard.common.identity import Key


class EvictionPolicy(Protocol):
    """Orders the ready chunks of one size class. It suggests; the machine evicts and then calls `remove`."""

    def insert(self, key: Key) -> None:
        """A chunk became ready; it counts as just used. Precondition: the key is not in."""

    def touch(self, keys: Iterable[Key]) -> None:
        """These chunks were used, the last of them most: a request's are given deepest first.

        Precondition: all are in.
        """

    def remove(self, key: Key) -> None:
        """The chunk is no longer ready. Precondition: the key is in."""

    def victim(self, in_use: Callable[[Key], bool]) -> Key | None:
        """The chunk to lose first among those not in use, or None. It stays in until `remove`."""

    def __len__(self) -> int: ...

    def __contains__(self, key: Key) -> bool: ...
