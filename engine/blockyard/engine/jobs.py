"""What a rank is asked to copy and what came of it. Values only; knows no session and no device."""

from dataclasses import dataclass, field
from typing import Literal

from blockyard.common.messages.states import CopyState

CopyKind = Literal["store", "load"]


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Device blocks for consecutive pages of one chunk, beginning at page `first_page`.

    Pages at either end may be left out: those that no load wants, or that are there already.
    """

    block_ids: list[int]
    first_page: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class CopyJob:
    """Keys with their device blocks, one range per key. `grant` is the number of the grant that pins a load's
    keys.
    """

    job: int
    kind: CopyKind
    keys: list[bytes]
    blocks: list[BlockRange]
    grant: int = 0


@dataclass(frozen=True, slots=True)
class CopyResult:
    """A job that has provably ended: nothing of it is in flight. One state per key, in order.

    `copied` bytes took `seconds`; `unverified` keys were to be verified but had no checksum yet.
    """

    job: int
    kind: CopyKind
    states: list[CopyState] = field(default_factory=list)
    copied: int = 0
    seconds: float = 0.0
    unverified: int = 0

    @property
    def ok(self) -> bool:
        """Every key was copied."""
        return all(state is CopyState.OK for state in self.states)
