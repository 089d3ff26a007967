"""What can be wrong with bytes of a file. Owns one word per damage; must never know what is done about it."""

from __future__ import annotations

from enum import StrEnum

from blockyard.common.errors import BlockyardError


class Damage(StrEnum):
    """In the order in which they are looked for."""

    TRUNCATED = "truncated"
    """There are fewer bytes than there must be."""
    MAGIC = "magic"
    """Something else stands there, or nothing."""
    CHECKSUM = "checksum"
    VALUE = "value"
    """The checksum is right, but a field has a value that nobody writes."""
    ORDER = "order"
    """A right record in the wrong place."""
    IDENTITY = "identity"
    """A right header of something else than what was looked for."""
    PAYLOAD = "payload"
    """The header is right, but the bytes are not the ones it tells of."""


class FormatError(BlockyardError):
    """Bytes that cannot be used."""


class Damaged(FormatError):
    """These bytes were not written like this, or not here."""

    def __init__(self, damage: Damage, detail: str) -> None:
        super().__init__(detail)
        self.damage = damage


class UnknownVersion(FormatError):
    """Undamaged, but written by another version of Blockyard: to be left alone."""

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(f"{what} has format version {version}; this Blockyard reads version {known}")
        self.version = version
