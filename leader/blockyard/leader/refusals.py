"""Links that were refused: each is counted, and each kind told once. Owns what was told already; refuses nobody.

A worker that is refused tries again every few seconds, for as long as nobody mends its settings.
"""

import logging

from blockyard.common.logs import fields
from blockyard.common.metrics.counters import Counters

_REMEMBERED = 1024

log = logging.getLogger(__name__)


class Refusals:
    """`count` those that the machine decides, which say themselves what became of them; `note` all others."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._told: set[tuple[str, str, str]] = set()

    def count(self, reason: str) -> None:
        """A link was refused."""
        self._counters.add("blockyard_leader_links_refused_total", reason=reason)

    def note(self, reason: str, peer: str, detail: str) -> None:
        """A link was refused, which is told unless this host was told of for the same reason before."""
        self.count(reason)
        kind = (reason, peer.rpartition(":")[0], detail)
        if len(self._told) >= _REMEMBERED:
            # Told again, rather than remembered without end.
            self._told.clear()
        level = logging.DEBUG if kind in self._told else logging.WARNING
        self._told.add(kind)
        log.log(level, "worker turned away", extra=fields(peer=peer, reason=reason, detail=detail))
