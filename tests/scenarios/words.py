"""Messages, records and states in plain words. Owns the wording; reads, and changes nothing.

A message without words of its own here is shown by its tag and fields, so that a new kind never stops a scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import TypeVar

import msgspec

from blockyard.common.identity import Key
from blockyard.common.messages import attach, cluster
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import SlotRecord, SlotState
from blockyard.leader.core.journal import Transition as LeaderTransition
from blockyard.worker.core.hints import Hints
from blockyard.worker.core.story import Transition as WorkerTransition
from scenarios.names import Names

State = TypeVar("State", KeyState, CopyState)


def record(slot: int, shown: SlotRecord, names: Names) -> str:
    """A slot as the slot table shows it; `unverified` while its checksums do not stand."""
    if shown.state is SlotState.FREE:
        return f"{slot} free"
    unverified = " unverified" if shown.state is SlotState.READY and not shown.checksums else ""
    return f"{slot} {names.of(shown.key)} {shown.state.name.lower()}{unverified} g{shown.generation}"


def grant(answer: attach.Grant, keys: Sequence[Key], names: Names) -> str:
    pinned = f"grant {answer.grant}" if answer.grant else "no grant"
    return f"{pinned}: {states(keys, [KeyState(state) for state in answer.states], names)}"


def resolved(answer: attach.Resolved, keys: Sequence[Key], names: Names) -> str:
    """Places by key: slot and generation, or why there is none."""
    told = []
    for at, key in enumerate(keys):
        state = CopyState(answer.states[at])
        place = f"slot {answer.slots[at]} g{answer.generations[at]}"
        told.append(f"{names.of(key)} {place if state is CopyState.OK else state.label}")
    return f"job {answer.job}: {', '.join(told)}"


def states(keys: Sequence[Key], answers: Sequence[State], names: Names) -> str:
    """`a b hit, c never-stored`."""
    runs = groupby(zip(keys, answers, strict=True), key=lambda pair: pair[1])
    return ", ".join(f"{names.listed(key for key, _ in run)} {state.label}" for state, run in runs)


def message(said: msgspec.Struct, names: Names) -> str:
    """A message of the cluster channel."""
    match said:
        case cluster.WorkerHello(incarnation=incarnation, next_seq=next_seq):
            return f"hello, incarnation {incarnation}, next delta {next_seq}"
        case cluster.LinkWelcome(epoch=epoch, expect_seq=expect):
            return f"welcome, epoch {epoch}, " + (f"expects delta {expect}" if expect else "wants a snapshot")
        case cluster.LinkRefused(code):
            return f"refused, {code}"
        case cluster.Delta(seq, _, changes):
            return f"delta {seq}: {_changes(changes, names)}"
        case cluster.Replacement(seq, _, changes, bucket):
            return f"delta {seq} replaces bucket {bucket:02x}: {_changes(changes, names)}"
        case cluster.Digests(seq):
            return f"digests as of delta {seq}"
        case cluster.SnapshotOffer(seq, keys):
            return f"offer of a snapshot of delta {seq}, {_keys(keys)}"
        case cluster.SnapshotBegin(seq, keys):
            return f"snapshot of delta {seq} begins, {_keys(keys)}"
        case cluster.SnapshotPart(changes):
            return f"part: {_changes(changes, names)}"
        case cluster.SnapshotEnd(seq, keys):
            return f"snapshot of delta {seq} ends, {_keys(keys)}"
        case cluster.Ack(seq):
            return f"ack {seq}"
        case cluster.SnapshotCredit(seq, parts):
            return f"credit for {parts} parts of the snapshot of delta {seq}"
        case cluster.Repair(buckets):
            return f"repair of buckets {buckets.hex(' ')}"
        case cluster.Resync(0, reason):
            return f"resync by a snapshot ({reason})"
        case cluster.Resync(from_seq, reason):
            return f"resync from delta {from_seq} ({reason})"
        case cluster.Order(job, kind, deadline_ms, keys):
            return f"order {job}: {kind} {names.listed(keys)} within {deadline_ms} ms"
        case cluster.OrderReport(job, outcome, count, left, reason):
            return f"report of order {job}: {outcome} {reason}".strip() + f", {count} done, {left} left"
    return plain(said)


def plain(said: msgspec.Struct) -> str:
    """Tag and fields of any message."""
    tag = str(said.__struct_config__.tag).replace("_", " ")
    fields = " ".join(f"{name}={_short(getattr(said, name))}" for name in said.__struct_fields__)
    return f"{tag} {fields}".strip()


def hints(kept: Hints | None) -> str:
    """What a request said, by name."""
    if kept is None:
        return "nothing"
    named = f"priority {kept.priority}, ttl {kept.ttl:g} s, session {kept.session or 'none'}, pin {kept.pin:g} s"
    return f"{named}, the last of its session" if kept.release else named


def worker_story(told: Iterable[WorkerTransition]) -> str:
    steps = (f"{_low(one.event)} -> {_low(one.after)} (slot {one.slot} g{one.generation})" for one in told)
    return ", ".join(steps) or "nothing"


def leader_story(told: Iterable[LeaderTransition]) -> str:
    return ", ".join(f"{one.cause}: {one.node} {'+' if one.tiers else '-'}" for one in told) or "nothing"


def _keys(count: int) -> str:
    return f"{count} key{'' if count == 1 else 's'}"


def _changes(changes: Sequence[cluster.Change], names: Names) -> str:
    return " ".join(f"{'+' if one.tiers else '-'}{names.of(one.key)}" for one in changes) or "nothing"


def _low(state: IntEnum) -> str:
    return state.name.lower()


def _short(value: object) -> str:
    return value.hex()[:8] if isinstance(value, bytes) else str(value)
