"""The cluster channel: a worker's link to the leader over TCP.

Owns the shape and the limits of each message.

    worker  WorkerHello -> Welcome | Refused
    worker  Delta, Replacement (numbered), SnapshotOffer, SnapshotBegin, SnapshotPart, SnapshotEnd, Digests,
            WorkerStats, Ping
    leader  Ack (cumulative), SnapshotCredit, Resync, Repair, Pong

From version 2 on, and only on a link whose welcome names it:

    worker  Locate, OrderReport
    leader  Peers, Located, Order

A worker's claims carry (cluster uid, incarnation, seq): uid and incarnation once per link, in the hello.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from blockyard.common.messages.attach import (
    MAX_GROUPS,
    BootId,
    Count,
    Digest,
    Name,
    OptionalBootId,
    OptionalDigest,
    Short,
    Small,
    Text,
)

PROTOCOL_MIN = 1
PROTOCOL_MAX = 2

PROTOCOL_PEERS = 2
"""The first version with peers and orders."""

MAX_FRAME = 1 << 20
"""Largest frame in bytes, either way. Each message fits at its own limits."""

MAX_CHANGES = 4096
"""Changes in one Delta or SnapshotPart."""

MAX_WORLDS = 256
"""Worlds in one Delta or SnapshotBegin."""

BUCKETS = 256
"""Keys are told apart by their first byte where digests are compared."""

MAX_REPAIRED = 32
"""Buckets in one Repair; where more differ a snapshot costs less."""

MAX_ENGINES = 256
"""Engines in one WorkerStats; further ones are left out."""

MAX_SHORT = 256
"""Characters of a model's name here; a longer one is cut."""

MAX_PEERS = 1024
"""Workers in one Peers: as many as a leader takes in."""

MAX_LOCATED = 1024
"""Keys in one Locate or Order."""

MAX_HOLDERS = 3
"""Holders named for one key."""

MAX_NODE = 64
MIN_ADDRESS, MAX_ADDRESS = 3, 180
"""Characters of a node id and of an address, of which one message carries many."""

MAX_MS = 86_400_000
"""The longest time that an order may have: a day."""

TIER_HOST = 1
TIER_DISK = 2
TIER_GPU = 4
"""Bits of `Change.tiers`."""


Seq = Annotated[int, Meta(ge=1, le=2**53)]
Byte = Annotated[int, Meta(ge=0, le=255)]
Node = Annotated[str, Meta(min_length=1, max_length=MAX_NODE)]
OptionalNode = Annotated[str, Meta(max_length=MAX_NODE)]
PeerAddress = Annotated[str, Meta(min_length=MIN_ADDRESS, max_length=MAX_ADDRESS)]
Keys = Annotated[list[Digest], Meta(max_length=MAX_LOCATED)]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_MS)]


class _Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class WorkerHello(_Message, tag="worker_hello"):
    """First frame of a worker. `incarnation` is the create-revision of its registration in etcd."""

    protocol_min: Small
    protocol_max: Small
    version: Name
    cluster: Name
    cluster_uid: OptionalBootId
    node: Name
    boot_id: BootId
    incarnation: Count
    next_seq: Count


class LinkWelcome(_Message, tag="link_welcome"):
    """The leader accepts. `expect_seq` is the next Delta it can apply; 0 asks for a snapshot first."""

    protocol: Small
    version: Name
    cluster_uid: BootId
    epoch: Count
    expect_seq: Count


class LinkRefused(_Message, tag="link_refused"):
    """The leader does not accept; `code` is a bounded word, `detail` one line for people."""

    code: Name
    detail: Text


class World(_Message):
    """A fingerprint as this worker numbers it; announced before the first change that uses it."""

    index: Small
    fingerprint: Digest
    model: Short
    tokens_per_chunk: Annotated[list[tuple[Small, Count]], Meta(max_length=MAX_GROUPS)]


class Change(_Message):
    """What this worker holds of one key from now on: a tier mask (0: nothing), bytes, group and world index."""

    key: Digest
    tiers: Small
    size: Count
    group: Small
    world: Small


class Delta(_Message, tag="delta"):
    """Changes since the last seq. It counts from 1 for each incarnation; what a snapshot replaces takes one too."""

    seq: Seq
    worlds: Annotated[list[World], Meta(max_length=MAX_WORLDS)]
    changes: Annotated[list[Change], Meta(max_length=MAX_CHANGES)]


class Replacement(_Message, tag="replacement"):
    """All that is held of one bucket's keys whose second byte is within these bounds; numbered as a Delta."""

    seq: Seq
    worlds: Annotated[list[World], Meta(max_length=MAX_WORLDS)]
    changes: Annotated[list[Change], Meta(max_length=MAX_CHANGES)]
    bucket: Byte
    first: Byte
    last: Byte


class SnapshotOffer(_Message, tag="snapshot_offer"):
    """A snapshot as of Delta `seq` is to come, of about so many keys; it waits for the leader's credit."""

    seq: Count
    keys: Count


class SnapshotBegin(_Message, tag="snapshot_begin"):
    """Everything the worker holds follows, as of Delta `seq`; parts are collected apart until the end.

    A key is told as it is when its part is made; what has changed since the begin follows in Deltas. So `keys` is
    only about how many there will be.
    """

    seq: Count
    keys: Count
    worlds: Annotated[list[World], Meta(max_length=MAX_WORLDS)]


class SnapshotPart(_Message, tag="snapshot_part"):
    """Some of the snapshot's keys."""

    changes: Annotated[list[Change], Meta(max_length=MAX_CHANGES)]


class SnapshotEnd(_Message, tag="snapshot_end"):
    """The snapshot is whole: `keys` keys; what is not in it is not held."""

    seq: Count
    keys: Count


class Digests(_Message, tag="digests"):
    """The rolling digests of what is held as of Delta `seq`; see blockyard.common.digests."""

    seq: Count
    words: Annotated[bytes, Meta(min_length=8 * BUCKETS, max_length=8 * BUCKETS)]


class WorkerStats(_Message, tag="worker_stats"):
    """Sizes for people and placement, about once a second; bytes and counts."""

    pool_bytes: Count
    used_bytes: Count
    ready_slots: Count
    pinned_slots: Count
    doomed_slots: Count
    engines: Annotated[list[tuple[Name, Short, Name]], Meta(max_length=MAX_ENGINES)]
    """(engine id, model, state) of each attached engine."""


class Ping(_Message, tag="ping"):
    """Liveness; answered by Pong with the same number."""

    number: Count


class Pong(_Message, tag="pong"):
    """Answer to Ping."""

    number: Count


class Ack(_Message, tag="ack"):
    """Every Delta up to and including `seq` is applied."""

    seq: Count


class SnapshotCredit(_Message, tag="snapshot_credit"):
    """The first `parts` parts of the snapshot as of Delta `seq` may be sent."""

    seq: Count
    parts: Count


class Repair(_Message, tag="repair"):
    """The digests of these buckets differ: send a Replacement of each."""

    buckets: Annotated[bytes, Meta(min_length=1, max_length=MAX_REPAIRED)]


class Resync(_Message, tag="resync"):
    """The leader lacks something: send Deltas from `from_seq` on, or (0) a snapshot."""

    from_seq: Count
    reason: Text


class Peer(_Message):
    """Another live worker: `address` ("host:port") is where it serves the chunks it holds."""

    node: Node
    incarnation: Count
    address: PeerAddress


class Peers(_Message, tag="peers"):
    """All other live workers that serve peers; once after the welcome, and whenever that changes.

    What an earlier link said of them says nothing of whether this leader answers a Locate.
    """

    peers: Annotated[list[Peer], Meta(max_length=MAX_PEERS)]


class Locate(_Message, tag="locate"):
    """Who else holds these keys? With `prefix` only what follows without a gap from the first key on is of use.

    Answered by one Located, or not at all: whoever asks has a deadline of its own.
    """

    number: Count
    keys: Keys
    prefix: bool = True


class Span(_Message):
    """`node` holds `keys[first:first + count]` of the question, each of them in all of these tiers."""

    first: Small
    count: Annotated[int, Meta(ge=1, le=MAX_LOCATED)]
    node: Node
    tiers: Small


class Located(_Message, tag="located"):
    """Answer to Locate: at most MAX_HOLDERS spans over each key, host before disk.

    `whole` False: the leader does not know all that is held, so a key without a span may be held all the same.
    """

    number: Count
    whole: bool
    spans: Annotated[list[Span], Meta(max_length=MAX_HOLDERS * MAX_LOCATED)]


OrderKind = Literal["copy", "drop", "promote", "demote", "pin", "unpin", "purge", "drain", "undrain"]
Outcome = Literal["done", "refused", "expired", "progress"]


class Order(_Message, tag="order"):
    """Something to be done within `deadline_ms` of now; the worker may refuse. Fields without a use are empty or 0.

    `job` is unique in this leader's epoch; the same one again asks only for its report. `copy` fetches `keys`, of this
    fingerprint and group, from the peer `node`; `pin` is for `seconds`; `purge` is of a fingerprint or of keys.
    """

    job: Count
    kind: OrderKind
    deadline_ms: Milliseconds
    keys: Keys = []
    node: OptionalNode = ""
    fingerprint: OptionalDigest = b""
    seconds: Count = 0
    group: Small = 0


class OrderReport(_Message, tag="order_report"):
    """How an order goes. Exactly one that is not `progress` per job and life of a link.

    `count` is what was done of it so far, `left` what is still to do, both in keys; `reason` is a bounded word.
    """

    job: Count
    outcome: Outcome
    count: Count = 0
    left: Count = 0
    reason: Short = ""


FromWorker = (
    WorkerHello
    | Delta
    | Replacement
    | SnapshotOffer
    | SnapshotBegin
    | SnapshotPart
    | SnapshotEnd
    | Digests
    | WorkerStats
    | Ping
    | Locate
    | OrderReport
)
ToWorker = LinkWelcome | LinkRefused | Pong | Ack | SnapshotCredit | Resync | Repair | Peers | Located | Order
