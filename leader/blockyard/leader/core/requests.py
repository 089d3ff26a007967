"""What people may ask of the cluster, and what they are told. Values only; owns no rule."""

from dataclasses import dataclass

from blockyard.common.identity import Fingerprint, Key


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Bring these keys into the host memory of this node's worker within `seconds`."""

    node: str
    keys: tuple[Key, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class PurgeAsked:
    """Drop everywhere: these keys, or this fingerprint, or all fingerprints of this model."""

    keys: tuple[Key, ...] = ()
    fingerprint: Fingerprint = b""
    model: str = ""
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Move off this node's worker what no other holds, and let it take in nothing new."""

    node: str


@dataclass(frozen=True, slots=True)
class UndrainAsked:
    """Let this node's worker work as before."""

    node: str


Request = Prefetch | PurgeAsked | DrainAsked | UndrainAsked


@dataclass(frozen=True, slots=True)
class Accepted:
    """It is under way. `cause` is what its orders are listed under, `counts` how many of what, by name."""

    cause: str
    counts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """It is not; `code` is unknown, conflict or busy, `detail` one line for people."""

    code: str
    detail: str


Answer = Accepted | Denied
