"""What the peers' side of the worker says to its shell, and what it hears. Owns the vocabulary; knows no socket.

    FetchChunks   -> one PeerRead or PeerFailed for each of its items, however late
    ServeChunks   -> one PeerServed
    PeerAsked     -> one ServeChunks, unless PeerSessionClosed comes first

Deadlines are seconds from now.
"""

from typing import Literal

import msgspec

from blockyard.common.identity import Fingerprint, Key
from blockyard.common.messages import cluster
from blockyard.common.messages.peer import FetchState

FetchFault = Literal["not-here", "busy", "shape", "corrupt", "gone", "deadline"]
"""The peer does not hold it (any more); serves too much; has it in another geometry; sent other bytes than it said; its
connection came to nothing; took too long, or the fetch was cancelled.
"""


class _Struct(msgspec.Struct, frozen=True):
    pass


# -- instructions ---------------------------------------------------------------------------------------


class FetchItem(_Struct):
    """One chunk of a fetch, and the slot that it goes to."""

    op: int
    key: Key
    slot: int
    generation: int
    offset: int


class FetchChunks(_Struct):
    """Ask a peer for chunks of one geometry; area i of a chunk goes to `offset + i * stride` of the pool.

    The slot of an item may be written to until its PeerRead or PeerFailed, and not after it.
    """

    node: str
    incarnation: int
    address: str
    fingerprint: Fingerprint
    group: int
    area_bytes: int
    areas: int
    stride: int
    deadline_s: float
    items: list[FetchItem]


class CancelFetches(_Struct):
    """Nobody wants these any more: end them as soon as may be. Each still has its PeerRead or PeerFailed."""

    ops: list[int]


class ServeItem(_Struct):
    """A chunk that a peer gets: area i lies at `offset + i * stride` of the pool and has checksum i."""

    slot: int
    generation: int
    offset: int
    checksums: tuple[int, ...]


class ServeChunks(_Struct):
    """Answer a peer: a state for each key that it asked for, and `items` for those that are ok, in order.

    The slots stay as they are until PeerServed.
    """

    session: int
    number: int
    states: list[FetchState]
    area_bytes: int
    stride: int
    items: list[ServeItem]


PeerInstruction = FetchChunks | CancelFetches | ServeChunks

# -- events ---------------------------------------------------------------------------------------------


class PeersKnown(_Struct):
    """The leader says who the other workers are that serve peers."""

    peers: list[cluster.Peer]


class Located(_Struct):
    """The leader's answer to a Locate."""

    number: int
    whole: bool
    spans: list[cluster.Span]


class Ordered(_Struct):
    """The leader of the link that is up gives an order."""

    order: cluster.Order


class PeerRead(_Struct):
    """The slot holds the chunk, and each area has the checksum that the sender said."""

    op: int
    checksums: tuple[int, ...]


class PeerFailed(_Struct):
    """It did not come to pass, and nothing touches the slot any more."""

    op: int
    reason: FetchFault


class PeerAsked(_Struct):
    """A peer wants chunks. `session` is the shell's number of its connection, which has one question at a time."""

    session: int
    number: int
    fingerprint: Fingerprint
    group: int
    area_bytes: int
    areas: int
    keys: list[Key]
    deadline_s: float


class PeerServed(_Struct):
    """A ServeChunks has ended, well or not: nothing reads its slots any more."""

    session: int
    number: int


class PeerSessionClosed(_Struct):
    """A peer's connection is gone. What was being served on it has its PeerServed all the same."""

    session: int


PeerEvent = PeersKnown | Located | Ordered | PeerRead | PeerFailed | PeerAsked | PeerServed | PeerSessionClosed
