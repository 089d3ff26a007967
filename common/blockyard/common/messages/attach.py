"""The attach channel: an engine's sessions with its node's worker over a Unix stream socket.

Owns the shape and the limits of each message. One scheduler session and one session per rank share an engine id.

    rank       Hello (+ its pidfd)  ->  Welcome (+ pool and table memfds) | Refused
    scheduler  Hello (+ its pidfd)  ->  Welcome | Refused; answered once all local ranks are attached
    scheduler  Acquire -> Grant;  Hints, Release, Fill, Finish, Forget, EngineCounters: no answer
    rank       Resolve -> Resolved;  StoreDone, LoadDone: no answer
    both       Bye: a clean end; Closing: the worker ends the session

Keys travel joined in one blob of 32 bytes each.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL_MIN = 1
PROTOCOL_MAX = 2

HINTS_SINCE = 2
"""Version from which on a worker takes Hints; one that speaks less is sent none."""

MAX_KEYS = 8192
"""Keys in one message; a longer run is cut by the engine."""

MAX_GROUPS = 64
"""KV cache groups of one engine."""

MAX_TEXT = 4096
"""Characters of a text; a longer one is cut by who sends it."""

MAX_FRAME = 1 << 20
"""Largest frame in bytes, either way. Each message fits at its own limits."""

DEFAULT_PRIORITY = 50
MAX_PRIORITY = 100
MAX_SESSION = 128
"""Characters of a hint's session."""

MAX_TTL_MS = 7 * 24 * 3600 * 1000
MAX_PIN_MS = 3600 * 1000
"""A pin takes room from all engines of a node, and there is no way to take it back."""

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
OptionalDigest = Annotated[bytes, Meta(max_length=32)]
BootId = Annotated[bytes, Meta(min_length=16, max_length=16)]
OptionalBootId = Annotated[bytes, Meta(max_length=16)]
KeyBlob = Annotated[bytes, Meta(max_length=32 * MAX_KEYS)]
PerKey = Annotated[bytes, Meta(max_length=MAX_KEYS)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Short = Annotated[str, Meta(max_length=256)]
"""A text of which one message carries many."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
Small = Annotated[int, Meta(ge=0, le=65535)]


class _Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class GroupShape(_Message):
    """One KV cache group as an engine has it. `area_bytes` is one rank's share of a chunk; 0 from the scheduler."""

    group: Small
    tokens_per_chunk: Annotated[int, Meta(ge=1, le=1 << 20)]
    area_bytes: Annotated[int, Meta(ge=0, le=1 << 40)]


class Hello(_Message, tag="hello"):
    """First frame of an engine's session. `previous` is the session it had in worker boot `previous_boot` (0: none).

    Sending it says that nothing of the previous session is in flight any more.
    """

    protocol_min: Small
    protocol_max: Small
    version: Name
    role: Literal["scheduler", "rank"]
    engine: Name
    model: Text
    rank: Annotated[int, Meta(ge=0, le=15)]
    local_ranks: Annotated[int, Meta(ge=1, le=16)]
    fingerprint: Digest
    groups: Annotated[list[GroupShape], Meta(min_length=1, max_length=MAX_GROUPS)]
    gpu_cache_bytes: Count
    previous: Count = 0
    previous_boot: OptionalBootId = b""


class GroupGrant(_Message):
    """Slot geometry of one group: a rank's area starts at `rank * area_stride` in its slot."""

    group: Small
    slot_bytes: Count
    area_stride: Count
    area_bytes: Count


class Welcome(_Message, tag="welcome"):
    """The worker accepts the session. To a rank it comes with the pool's and the table's descriptors."""

    protocol: Small
    version: Name
    session: Count
    boot_id: BootId
    worker: Name
    cluster_uid: OptionalBootId
    pool_bytes: Count
    table_bytes: Count
    groups: Annotated[list[GroupGrant], Meta(max_length=MAX_GROUPS)]
    pin_ttl_ms: Count


class Refused(_Message, tag="refused"):
    """The worker does not accept the session; `code` is a bounded word, `detail` one line for people."""

    code: Name
    detail: Text


class Run(_Message):
    """Consecutive chunks of one request in one group.

    `start` is the index of the first chunk in the request and `parent` the key before it (empty at 0).
    `prefix`: only a hit without a gap from the first key on is of use.
    """

    group: Small
    start: Count
    parent: OptionalDigest
    keys: KeyBlob
    prefix: bool = True


class Hints(_Message, tag="hints"):
    """What a request says of itself, before its first Acquire or Fill; kept until its Finish. From version 2 on.

    A default says nothing. `session`: the conversation that it is part of; `release`: with this request's end the
    conversation is over; `ttl_ms`, `pin_ms`: how long its chunks are of use, and how long they are to be kept.
    """

    request: Name
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = DEFAULT_PRIORITY
    ttl_ms: Annotated[int, Meta(ge=0, le=MAX_TTL_MS)] = 0
    session: Annotated[str, Meta(max_length=MAX_SESSION)] = ""
    release: bool = False
    pin_ms: Annotated[int, Meta(ge=0, le=MAX_PIN_MS)] = 0


class Acquire(_Message, tag="acquire"):
    """Pin what is ready of these runs for a request.

    The answer may come up to `wait_ms` later, if more can be read from a lower tier meanwhile.
    """

    seq: Count
    request: Name
    runs: Annotated[list[Run], Meta(min_length=1, max_length=64)]
    wait_ms: Annotated[int, Meta(ge=0, le=10_000)] = 0


class Grant(_Message, tag="grant"):
    """Answer to Acquire: one KeyState per key, runs one after the other; hits are pinned under `grant`.

    `grant` is 0 when nothing is pinned. Pins end with Release, Finish, or `pin_ttl_ms` after the answer.
    """

    seq: Count
    grant: Count
    states: PerKey


class Release(_Message, tag="release"):
    """Unpin these keys of a grant; an empty blob means all of it."""

    grant: Count
    keys: KeyBlob = b""


class Fill(_Message, tag="fill"):
    """Reserve slots for chunks that the ranks are about to store under `job`."""

    job: Count
    request: Name
    runs: Annotated[list[Run], Meta(min_length=1, max_length=64)]


class Finish(_Message, tag="finish"):
    """The request is over (finished or aborted): nothing is pinned for it any more, apart from running copies."""

    request: Name


class Forget(_Message, tag="forget"):
    """Drop every chunk of this engine's fingerprint: its bytes are no longer what the engine would compute."""

    reason: Text


class EngineCounters(_Message, tag="counters"):
    """Increments of the engine's own counters since the last message, by metric name and label value."""

    counts: Annotated[list[tuple[Name, Short, float]], Meta(max_length=256)]


class Resolve(_Message, tag="resolve"):
    """A rank asks for the places of a job. A store waits up to `wait_ms` for the scheduler's Fill.

    `grant` is the grant that pins a load's keys; 0 for a store. `keys` are the job's keys in order.
    """

    seq: Count
    job: Count
    kind: Literal["store", "load"]
    grant: Count
    keys: KeyBlob
    wait_ms: Annotated[int, Meta(ge=0, le=10_000)]


class Resolved(_Message, tag="resolved"):
    """Places of a job: per key a CopyState, slot, generation and pool offset (the last three 0 unless OK).

    From here on the rank counts as copying to or from the OK slots until its StoreDone or LoadDone.
    """

    seq: Count
    job: Count
    states: PerKey
    slots: Annotated[list[Count], Meta(max_length=MAX_KEYS)]
    generations: Annotated[list[Count], Meta(max_length=MAX_KEYS)]
    offsets: Annotated[list[Count], Meta(max_length=MAX_KEYS)]


class StoreDone(_Message, tag="store_done"):
    """No copy of this store is in flight any more; one CopyState per key. `copied` bytes in `micros` µs."""

    job: Count
    states: PerKey
    copied: Count
    micros: Count


class LoadDone(_Message, tag="load_done"):
    """No copy of this load is in flight any more; one CopyState per key. `copied` bytes in `micros` µs."""

    job: Count
    states: PerKey
    copied: Count
    micros: Count


class Bye(_Message, tag="bye"):
    """The engine ends this session cleanly; nothing is in flight."""


class Closing(_Message, tag="closing"):
    """The worker ends this session; the engine serves detached and attaches again later."""

    reason: Text


FromEngine = (
    Hello | Hints | Acquire | Release | Fill | Finish | Forget | EngineCounters | Resolve | StoreDone | LoadDone | Bye
)
ToEngine = Welcome | Refused | Grant | Resolved | Closing
