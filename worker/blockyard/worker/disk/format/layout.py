"""Fixed fields in little-endian order, and what all headers have in common. Owns where a field lies and the
checksum of a header; must never know what a field is for.

    0      magic          8 bytes, by kind of header
    8      version        u32
    12     header_bytes   u32
    16     the kind's own fields, then zeros
    -8     checksum       xxh3-64 of everything before it

Every version keeps these, so damage and a version from the future can be told apart.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import xxhash

from blockyard.worker.disk.format.errors import Damage, Damaged, UnknownVersion

VERSION = 1
CHECKSUM_BYTES = 8

_TYPES = {"H": "u16", "I": "u32", "Q": "u64"}


class Field(NamedTuple):
    """`code` is a struct code: a number, `ns` for n bytes, or `nQ` for several numbers."""

    name: str
    code: str

    @property
    def size(self) -> int:
        return struct.calcsize(f"<{self.code}")

    @property
    def type(self) -> str:
        """As the documentation writes it."""
        if self.code.endswith("s"):
            return "bytes"
        count = self.code[:-1]
        return f"{count} × {_TYPES[self.code[-1]]}" if count else _TYPES[self.code]


PREFIX = (Field("magic", "8s"), Field("version", "I"), Field("header_bytes", "I"))


class Layout:
    """One kind of header: `size` bytes that begin with `magic`."""

    def __init__(self, what: str, magic: bytes, size: int, fields: tuple[Field, ...]) -> None:
        self.what = what
        self.magic = magic
        self.size = size
        self.fields = (*PREFIX, *fields)
        self._struct = struct.Struct("<" + "".join(field.code for field in self.fields))
        assert len(magic) == PREFIX[0].size and self._struct.size <= size - CHECKSUM_BYTES

    def rows(self) -> list[tuple[int, int, str, str]]:
        """Offset, bytes, name and type of each field, the checksum at the end."""
        found, offset = [], 0
        for field in self.fields:
            found.append((offset, field.size, field.name, field.type))
            offset += field.size
        return [*found, (self.size - CHECKSUM_BYTES, CHECKSUM_BYTES, "checksum", "u64")]

    def pack(self, *values: object) -> bytes:
        """A header with these values, in the order of its own fields."""
        head = self._struct.pack(self.magic, VERSION, self.size, *values).ljust(self.size - CHECKSUM_BYTES, b"\0")
        return head + checksum(head).to_bytes(CHECKSUM_BYTES, "little")

    def unpack(self, data: bytes | memoryview) -> tuple[Any, ...]:
        """The values of its own fields; raises Damaged or UnknownVersion."""
        if len(data) < self.size:
            raise Damaged(Damage.TRUNCATED, f"{self.what} has {len(data)} bytes, needs {self.size}")
        if data[: len(self.magic)] != self.magic:
            found = bytes(data[: len(self.magic)])
            raise Damaged(Damage.MAGIC, f"{self.what} begins with {found.hex()}, expected {self.magic.hex()}")
        body = self.size - CHECKSUM_BYTES
        if int.from_bytes(data[body : self.size], "little") != checksum(data[:body]):
            raise Damaged(Damage.CHECKSUM, f"{self.what} does not match its checksum")
        _, version, size, *values = self._struct.unpack_from(data)
        if version != VERSION:
            raise UnknownVersion(self.what, version, VERSION)
        if size != self.size:
            raise Damaged(Damage.VALUE, f"header_bytes of {self.what} is {size}, expected {self.size}")
        return tuple(values)

    def require(self, right: bool, name: str, value: object) -> None:
        """Refuse a value that nobody writes."""
        if not right:
            raise Damaged(Damage.VALUE, f"{name} of {self.what} is {value}, which nobody writes")


def checksum(data: bytes | memoryview) -> int:
    """xxh3-64, as of a slot's areas."""
    return xxhash.xxh3_64_intdigest(data)
