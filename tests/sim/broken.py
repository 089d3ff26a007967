"""Deliberately broken variants of the production code, to show that the simulator would notice. Owns the patches;
each is in force only inside its `with` block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import msgspec

from blockyard.common.fencing import Epoch, EpochFence
from blockyard.common.identity import Key
from blockyard.common.messages import cluster
from blockyard.leader.core.drift import Drift
from blockyard.leader.core.instructions import Instruction
from blockyard.leader.core.leader import LeaderCore
from blockyard.worker.core import outbox
from blockyard.worker.core.attachments import Attachments
from blockyard.worker.core.chunks import Chunk
from blockyard.worker.core.hints import HintBook
from blockyard.worker.core.outbox import Outbox
from blockyard.worker.core.sessions import Session
from blockyard.worker.core.slots import SizeClass
from blockyard.worker.core.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Broken:
    """What a simulated part does wrong, where no production class can be patched."""

    ignores_generations: bool = False
    trusts_peers: bool = False


@contextmanager
def nothing() -> Iterator[Broken]:
    yield Broken()


@contextmanager
def visible_too_early() -> Iterator[Broken]:
    """A chunk is shown when one rank has filled its area, if no other has begun: the core's own table sees nothing."""
    right = Transfers._store_ended

    def wrong(self: Transfers, session: Session, ended: list[tuple[Chunk, str]]) -> None:
        for chunk, outcome in ended:
            if outcome == "ok" and not chunk.copiers:
                chunk.parts = chunk.size_class.all_parts & ~(1 << session.rank)
        right(self, session, ended)

    with patch.object(Transfers, "_store_ended", wrong):
        yield Broken()


@contextmanager
def generations_ignored() -> Iterator[Broken]:
    """Ranks copy without looking at a slot's generation."""
    yield replace(Broken(), ignores_generations=True)


@contextmanager
def freed_at_scheduler_death() -> Iterator[Broken]:
    """With its scheduler an engine's copies are taken for ended."""
    right = Attachments.end

    def wrong(self: Attachments, session: Session, reason: str) -> None:
        if session.role == "scheduler":
            for rank in session.engine.ranks.values():
                self._transfers.end_copies(rank)
        right(self, session, reason)

    with patch.object(Attachments, "end", wrong):
        yield Broken()


@contextmanager
def no_fences() -> Iterator[Broken]:
    """Workers obey any epoch, leaders take claims of any incarnation."""

    def admit(self: EpochFence, epoch: Epoch, history: int = 0) -> bool:
        self.highest = epoch
        return True

    right = LeaderCore._opened

    def opened(self: LeaderCore, now: float, link: int, hello: cluster.WorkerHello) -> list[Instruction]:
        member = self.members.by_node.get(hello.node)
        if member is not None and hello.incarnation < member.incarnation:
            hello = msgspec.structs.replace(hello, incarnation=member.incarnation)
        return right(self, now, link, hello)

    with patch.object(EpochFence, "admit", admit), patch.object(LeaderCore, "_opened", opened):
        yield Broken()


@contextmanager
def changes_lost() -> Iterator[Broken]:
    """A worker forgets each twentieth change. Digests repair what comes of it; that they have to is noticed."""
    right = Outbox.note
    noted = itertools.count(1)

    def wrong(self: Outbox, key: Key, size_class: SizeClass, tiers: int) -> None:
        if next(noted) % 20:
            right(self, key, size_class, tiers)
        else:
            self.ledger.enter(outbox._change(key, size_class, tiers))

    with patch.object(Outbox, "note", wrong):
        yield Broken()


@contextmanager
def digests_ignored() -> Iterator[Broken]:
    """A leader compares no digests."""

    def due(self: Drift, now: float, applied: int) -> bool:
        return False

    with patch.object(Drift, "due", due):
        yield Broken()


@contextmanager
def hints_kept() -> Iterator[Broken]:
    """A worker keeps a request's hints beyond its end."""

    def finished(self: HintBook, session: Session, request: str) -> None:
        return

    with patch.object(HintBook, "finished", finished):
        yield Broken()


@contextmanager
def peers_trusted() -> Iterator[Broken]:
    """Workers take what peers send without a look at its checksums."""
    yield replace(Broken(), trusts_peers=True)


VARIANTS = {
    "nothing": nothing,
    "visible-too-early": visible_too_early,
    "generations-ignored": generations_ignored,
    "freed-at-scheduler-death": freed_at_scheduler_death,
    "no-fences": no_fences,
    "changes-lost": changes_lost,
    "digests-ignored": digests_ignored,
    "hints-kept": hints_kept,
    "peers-trusted": peers_trusted,
}
