"""Owns what the demo saw and which of it had to hold. It never starts, asks or prints anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blockyard.cli.demo.control_plane import NODE
from blockyard.cli.demo.conversation import Turn
from blockyard.cli.demo.leader_client import Match
from blockyard.cli.demo.measure import PROMPT_CHUNKS, SHARED_TOKENS, Row

REFERENCE = "prefix_hit"
FASTEST_OF_HOST = "host_hit"


@dataclass(frozen=True, slots=True)
class LeaderView:
    """What the leader answered at one moment."""

    moment: str
    workers: list[dict[str, Any]]
    last_chunk_holders: list[dict[str, Any]]
    match: list[Match]
    engines_alive: set[str]
    """The engines that were running then."""

    def problems(self) -> list[str]:
        """One line for each thing in it that is not as it has to be."""
        found = []
        if [worker["node"] for worker in self.workers] != [NODE]:
            found.append(f"leader, {self.moment}: knows workers {[w['node'] for w in self.workers]}, not {NODE} alone")
        engines = {engine["engine"] for worker in self.workers for engine in worker["engines"]}
        if engines != self.engines_alive:
            found.append(f"leader, {self.moment}: knows engines {sorted(engines)}, not {sorted(self.engines_alive)}")
        if self.match != [Match(NODE, PROMPT_CHUNKS)]:
            found.append(f"leader, {self.moment}: matches {self.match}, not {PROMPT_CHUNKS} chunks on {NODE}")
        if [holder["node"] for holder in self.last_chunk_holders if "host" in holder["tiers"]] != [NODE]:
            found.append(
                f"leader, {self.moment}: the last chunk is held by {self.last_chunk_holders}, not {NODE} in host"
            )
        return found


@dataclass(slots=True)
class Findings:
    """Everything seen, in the order seen."""

    turns: list[Turn] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    leader: list[LeaderView] = field(default_factory=list)
    broken_off: list[str] = field(default_factory=list)
    """Why the run ended early, and what it left behind."""

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def tokens_equal(self, row: Row) -> bool:
        """Compared with the engine's own prefix hit, which computes the same tail on the same prefix."""
        reference = self.row(REFERENCE)
        return reference is not None and row.tokens_equal(reference)

    def ratio(self, over: str, under: str) -> float | None:
        """TTFT of one row over that of another."""
        above, below = self.row(over), self.row(under)
        return above.ttft_s / below.ttft_s if above and below else None

    def problems(self) -> list[str]:
        """One line for each thing that did not hold; none is what everybody wants."""
        found = [*self.broken_off]
        for number, turn in enumerate(self.turns, 1):
            if not turn.held:
                cached, wanted = turn.answer.cached_tokens, turn.expected_cached
                found.append(f"chat turn {number} on {turn.engine}: {cached} tokens were cached, not {wanted} or more")
        for row in self.rows:
            found += self._row_problems(row)
        for view in self.leader:
            found += view.problems()
        return found

    def _row_problems(self, row: Row) -> list[str]:
        if row.name == "recompute":
            # Its tokens may differ in a tie: bfloat16 rounds otherwise when a prompt is computed in other pieces.
            cached = max(answer.cached_tokens for answer in row.answers)
            return [f"{row.name}: {cached} tokens were cached, none should be"] if cached else []
        found = []
        cached_of_each = [answer.cached_tokens for answer in row.answers]
        if set(cached_of_each) != {SHARED_TOKENS}:
            found.append(f"{row.name} on {row.engine}: cached tokens were {cached_of_each}, not {SHARED_TOKENS} each")
        if not self.tokens_equal(row):
            found.append(f"{row.name} on {row.engine}: its tokens are not those of the engine's own prefix hit")
        return found
