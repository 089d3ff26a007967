"""With which weights an engine computes, as its scheduler knows it: the world that keys are made from now.

Owns when a new epoch of the weights begins, and which steps and GPU blocks belong to it. A new epoch gets a world that
no engine has had: nothing stored before can be hit, here or anywhere, and other engines keep what they share. Must
never know requests. Pure: random bytes are passed in.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from blockyard.common.identity import DIGEST_BYTES, Fingerprint

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """A rank's weights have changed `count` times; `since` is the first step that it computed with the present ones."""

    count: int
    since: int


class Epochs:
    """Epochs of one engine of `ranks` ranks; `fresh` gives bytes that nobody else has."""

    def __init__(self, world: Fingerprint, ranks: int, fresh: Callable[[], bytes]) -> None:
        self._base = world
        self._fresh = fresh
        self._since: dict[int, int] = {}
        self.world = world
        self.number = 0
        self.step = 1
        """The step that is being scheduled."""
        self.first_step = 0
        """What was computed before it belongs to an older epoch."""
        self.heard = (0,) * ranks
        """Changes of each rank's weights that are part of the present epoch."""

    def step_ends(self) -> None:
        """The step that was being scheduled is on its way to the ranks."""
        self.step += 1

    def reset(self) -> None:
        """Whatever was computed until now is of no use any more."""
        self._begin(self.step, "the cache was reset")

    def hear(self, changes: Mapping[int, Change]) -> bool:
        """Ranks have told of changes; whether a new epoch begins with that."""
        news = {rank: change for rank, change in changes.items() if change.count != self.heard[rank]}
        if not news:
            return False
        self.heard = tuple(news[rank].count if rank in news else count for rank, count in enumerate(self.heard))
        self._begin(max(change.since for change in news.values()), "the weights may have changed")
        return True

    def includes(self, step: int) -> bool:
        """Whether what is computed from nothing but steps from this one on is of the present epoch."""
        return step >= self.first_step

    def earliest(self, blocks: Iterable[int]) -> int:
        """The earliest step that anything in these GPU blocks comes from, and a request that begins with them now."""
        since = self._since
        return min((since.get(block, 0) for block in blocks), default=self.step)

    def fill(self, blocks: Iterable[int], since: int) -> None:
        """These blocks are given to a request whose contents come from no step before `since`."""
        self._since.update(dict.fromkeys(blocks, since))

    def _begin(self, first_step: int, why: str) -> None:
        self.number += 1
        self.first_step = max(self.first_step, first_step)
        person = b"blockyard-epoch"
        self.world = blake2b(self._fresh(), digest_size=DIGEST_BYTES, key=self._base, person=person).digest()
        logger.info("Blockyard: %s: world %s from now on, in which nothing is stored yet", why, self.world.hex())
