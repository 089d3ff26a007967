"""The peer channel: one worker reads chunks of another's, over TCP connections of their own.

Owns the shape and the limits of each message.

    reader  PeerHello -> PeerWelcome | PeerRefused
    reader  Fetch -> Fetched, and behind it the bytes of the keys that are OK, in the order of the keys: of each key its
            areas one after the other, `area_bytes` each, nothing between them

A connection carries one Fetch at a time. Keys travel joined in one blob of 32 bytes each.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from blockyard.common.messages.attach import BootId, Count, Digest, Name, OptionalBootId, Small, Text
from blockyard.common.messages.states import Labelled

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

MAX_KEYS = 64
"""Keys in one Fetch."""

MAX_AREAS = 16

MAX_DEADLINE_MS = 60_000

MAX_FRAME = 64 << 10
"""Largest frame in bytes, either way. Each message fits at its own limits."""

Checksum = Annotated[bytes, Meta(max_length=8 * MAX_AREAS)]


class FetchState(Labelled):
    """What becomes of one key of a Fetch."""

    OK = 0
    NOT_HERE = 1
    BUSY = 2
    DEADLINE = 3
    SHAPE = 4


class _Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class PeerHello(_Message, tag="peer_hello"):
    """First frame of who connects: who it is, and which registration of which worker it wants to speak to."""

    protocol_min: Small
    protocol_max: Small
    version: Name
    cluster: Name
    cluster_uid: OptionalBootId
    node: Name
    incarnation: Count
    to_node: Name
    to_incarnation: Count


class PeerWelcome(_Message, tag="peer_welcome"):
    """The other side accepts."""

    protocol: Small
    version: Name
    node: Name
    boot_id: BootId


class PeerRefused(_Message, tag="peer_refused"):
    """It does not; `code` is a bounded word, `detail` one line for people."""

    code: Name
    detail: Text


class Fetch(_Message, tag="fetch"):
    """The bytes of these keys, within `deadline_ms`; they are of use in this geometry alone."""

    number: Count
    fingerprint: Digest
    group: Small
    area_bytes: Annotated[int, Meta(ge=1, le=1 << 40)]
    areas: Annotated[int, Meta(ge=1, le=MAX_AREAS)]
    keys: Annotated[bytes, Meta(min_length=32, max_length=32 * MAX_KEYS)]
    deadline_ms: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)]


class Fetched(_Message, tag="fetched"):
    """One FetchState per key; of each that is OK the checksums of its areas, 8 bytes each, little-endian.

    Of an OK key all bytes follow, or the connection ends.
    """

    number: Count
    states: Annotated[bytes, Meta(min_length=1, max_length=MAX_KEYS)]
    checksums: Annotated[list[Checksum], Meta(max_length=MAX_KEYS)]


FromReader = PeerHello | Fetch
ToReader = PeerWelcome | PeerRefused | Fetched
