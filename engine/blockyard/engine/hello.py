"""The first message of a session, from who the engine is."""

from typing import Literal

from blockyard.common.messages.attach import PROTOCOL_MAX, PROTOCOL_MIN, GroupShape, Hello
from blockyard.engine.identity import EngineIdentity, bounded_name

MAX_MODEL = 4096


def hello_of(
    role: Literal["scheduler", "rank"],
    identity: EngineIdentity,
    shapes: list[GroupShape],
    local_ranks: int,
    rank: int = 0,
) -> Hello:
    """A Hello without a previous session."""
    return Hello(
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        version=bounded_name(identity.version),
        role=role,
        engine=bounded_name(identity.engine),
        model=identity.model[:MAX_MODEL],
        rank=rank,
        local_ranks=local_ranks,
        fingerprint=identity.fingerprint,
        groups=shapes,
        gpu_cache_bytes=identity.gpu_cache_bytes,
    )
