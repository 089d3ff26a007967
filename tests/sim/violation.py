"""What a run may find: an invariant that did not hold. Owns the one exception that ends a run."""

from __future__ import annotations


class Violation(AssertionError):
    """`name` is the invariant's; `key` is the chunk concerned, if one is."""

    def __init__(self, name: str, detail: str, key: bytes = b"") -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail
        self.key = key
