"""What a key under a lease is to the process that wants it. Owns the three states; never how one becomes another."""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.common.etcd.values import KeyValue


@dataclass(frozen=True, slots=True)
class Held:
    create_revision: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Someone else holds the key; we take it when it is gone."""

    holder: KeyValue


@dataclass(frozen=True, slots=True)
class NotHeld:
    reason: str


KeyState = Held | Waiting | NotHeld
