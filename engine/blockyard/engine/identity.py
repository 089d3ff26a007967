"""Who an engine is towards its worker. Owns the values of a Hello that do not depend on role or session."""

from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version

MAX_NAME = 256


def own_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("blockyard")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """`engine` names one start of one engine: equal in its scheduler and its ranks, new after a restart."""

    engine: str
    model: str
    fingerprint: bytes
    gpu_cache_bytes: int = 0
    version: str = own_version()


def bounded_name(text: str) -> str:
    """`text` as the protocol takes names: 1 to 256 characters; a longer one keeps its start and gets a
    digest.
    """
    if 0 < len(text) <= MAX_NAME:
        return text
    digest = blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{text[: MAX_NAME - len(digest) - 1]}-{digest}"
