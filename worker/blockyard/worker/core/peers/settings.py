"""The limits within which chunks are fetched from peers and served to them. Owns the numbers."""

import msgspec


class PeerSettings(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds. Unless `enabled`, no peer is asked for anything and none is served."""

    enabled: bool = False
    locate_wait: float = 0.02
    """How long the leader's answer to a question is waited for."""
    fetch_wait: float = 5.0
    """How long a chunk may be on its way, all tries together."""
    fetching_share: float = 0.25
    """Of the pool, at most, what is being fetched into at a time."""
    max_batch: int = 16
    """Chunks in one fetch: what is behind it in the same connection waits for it."""
    max_tries: int = 3
    """Holders that are tried for one chunk."""
    max_questions: int = 64
    """Questions under way at the leader."""
    fresh: float = 1.0
    """How long an answer of the leader, or that a fetch failed, stands without asking again."""
    hint_ttl: float = 30.0
    """How long an answer is of use where the leader cannot be asked."""
    max_hints: int = 65536
    max_serving: int = 256
    """Chunks on their way to peers at a time."""
    max_asked: int = 64
    """Chunks in one question of a peer."""
