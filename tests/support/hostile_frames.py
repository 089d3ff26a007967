"""Frames that a peer should not send, and right ones at any time. Owns their making from one seed and the types of a
channel; must never know what a receiver does with them.

right      a message of the channel that is valid by type and limits, whatever it says
unknown    well formed, of a kind that this version does not have
mutated    a right one with some bytes changed
typed      a right tag with fields of other types, too few or too many
deep       values in values in values
noise      random bytes of the length that the prefix says
empty, oversize    a length out of bounds
raw        bytes without any frame
cut        the beginning of a right one, and nothing more
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

from blockyard.common.codec import PREFIX_BYTES, FrameRefused, encode

KINDS = {
    "right": 40,
    "unknown": 10,
    "mutated": 20,
    "typed": 8,
    "deep": 4,
    "noise": 6,
    "empty": 2,
    "oversize": 4,
    "raw": 3,
    "cut": 3,
}
OUT_OF_STEP = ("empty", "oversize", "raw", "cut")
"""After one of these the stream has no frames any more."""

_ODD = [None, True, -1, 2**64 - 1, 1.5, float("nan"), "", "x" * 300, b"", b"x" * 300, [], [[]], {}, {"a": 1}]
_MOST_ITEMS = 3


class HostileFrames:
    """`next` gives a kind and bytes. `kinds` are the message types of one direction of a channel."""

    def __init__(self, seed: int, kinds: tuple[type[msgspec.Struct], ...], max_frame: int) -> None:
        self._draw = random.Random(seed)
        self._kinds = kinds
        self._max_frame = max_frame
        self._makers: dict[str, Callable[[], bytes]] = {
            "right": self.right,
            "unknown": lambda: framed(msgspec.msgpack.encode([f"kind{self._draw.randrange(9)}", 1, "x"])),
            "mutated": self._mutated,
            "typed": self._typed,
            "deep": self._deep,
            "noise": lambda: framed(self._draw.randbytes(self._draw.randrange(1, 300))),
            "empty": lambda: bytes(PREFIX_BYTES),
            "oversize": self._oversize,
            "raw": lambda: self._draw.randbytes(self._draw.randrange(1, 300)),
            "cut": self._cut,
        }

    def next(self) -> tuple[str, bytes]:
        """A frame of any kind."""
        kind = self._draw.choices(list(KINDS), list(KINDS.values()))[0]
        return kind, self._makers[kind]()

    def right(self, *kinds: type[msgspec.Struct]) -> bytes:
        """A frame that is valid in itself, of one of these kinds."""
        kind = self._draw.choice(kinds or self._kinds)
        try:
            return encode(self._value(_type_info(kind)), self._max_frame)
        except FrameRefused:
            return self.right(*kinds)

    def _mutated(self) -> bytes:
        data = bytearray(self.right())
        for _ in range(self._draw.randrange(1, 5)):
            data[self._draw.randrange(PREFIX_BYTES, len(data))] = self._draw.randrange(256)
        return bytes(data)

    def _typed(self) -> bytes:
        tag = self._draw.choice(self._kinds).__struct_config__.tag
        return framed(msgspec.msgpack.encode([tag, *self._draw.choices(_ODD, k=self._draw.randrange(12))]))

    def _deep(self) -> bytes:
        opener = self._draw.choice([b"\x91", b"\x81\xa1a", b"\x92\xc0"])
        return framed(opener * self._draw.randrange(100, 20_000))

    def _oversize(self) -> bytes:
        size = self._draw.randrange(self._max_frame + 1, 1 << 32)
        return size.to_bytes(PREFIX_BYTES, "little") + self._draw.randbytes(20)

    def _cut(self) -> bytes:
        data = self.right()
        return data[: self._draw.randrange(1, len(data))]

    def _value(self, kind: inspect.Type) -> Any:
        """Any value that this type takes; lists and texts are short as a rule, and at their limit now and then."""
        draw = self._draw
        match kind:
            case inspect.StructType(cls=cls, fields=fields):
                return cls(*(self._value(field.type) for field in fields))
            case inspect.IntType(ge=least, le=most):
                least, most = least or 0, most if most is not None else 2**53
                return draw.choice([least, most, draw.randint(least, most), draw.randint(least, min(most, least + 9))])
            case inspect.StrType(min_length=least, max_length=most):
                return draw.choice("abcé☃") * self._length(least, most)
            case inspect.BytesType(min_length=least, max_length=most):
                size = self._length(least, most)
                return draw.randbytes(size // 32 * 32 or size)
            case inspect.ListType(item_type=item, min_length=least):
                return [self._value(item) for _ in range(self._length(least, _MOST_ITEMS))]
            case inspect.TupleType(item_types=items):
                return tuple(self._value(item) for item in items)
            case inspect.LiteralType(values=values):
                return draw.choice(values)
            case inspect.FloatType():
                return draw.choice([0.0, -1.0, 1e300, float("inf"), float("nan"), draw.random()])
            case inspect.BoolType():
                return draw.random() < 0.5
        raise AssertionError(f"the messages have a kind of field that is not made up yet: {kind}")

    def _length(self, least: int | None, most: int | None) -> int:
        least, most = least or 0, most if most is not None else 64
        if self._draw.random() < 0.02:
            return self._draw.choice([least, most])
        return min(most, self._draw.randint(least, least + 64))


@functools.cache
def _type_info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def framed(payload: bytes) -> bytes:
    """A payload with its length before it."""
    return len(payload).to_bytes(PREFIX_BYTES, "little") + payload


def members(union: Any) -> tuple[type[msgspec.Struct], ...]:
    """The message types of a channel's union."""
    return tuple(union.__args__)
