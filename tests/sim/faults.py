"""What goes wrong in a run: drawn up front, each with its time and target. Owns the kinds and their mix per seed.

A fault is plain data, so a failing run can be tried again with some of them left out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sim.streams import Streams


@dataclass(frozen=True, slots=True)
class Fault:
    """`place` and `size` are numbers in [0, 1) that say which of the candidates is hit, and how hard."""

    number: int
    at: float
    kind: str
    place: float
    size: float

    def __str__(self) -> str:
        return f"#{self.number} at {self.at:.2f} s: {self.kind} (place {self.place:.2f}, size {self.size:.2f})"


# Kind: how often it is drawn, relative to the others.
WEIGHTS: dict[str, float] = {
    "worker-kill": 1.0,
    "worker-pause": 2.0,
    "worker-slow": 1.0,
    "worker-zombie": 0.7,
    "leader-kill": 1.0,
    "leader-pause": 1.5,
    "leader-slow": 0.5,
    "etcd-down": 1.0,
    "etcd-pause": 1.0,
    "etcd-wipe": 0.3,
    "etcd-restore": 0.5,
    "etcd-compact": 1.0,
    "etcd-key-deleted": 0.6,
    "link-cut": 2.0,
    "link-stall": 1.5,
    "network-clog": 1.0,
    "session-cut": 2.0,
    "session-stall": 1.0,
    "checksum-slow": 1.0,
    "checksum-failing": 0.7,
    "bytes-spoilt": 0.7,
    "engine-kill-scheduler-first": 1.5,
    "engine-kill-rank-first": 1.5,
    "engine-kill-both": 0.7,
    "rank-pause": 2.0,
    "scheduler-pause": 1.5,
    "false-death": 1.5,
    "clock-jump": 0.5,
    "disk-failing": 1.0,
    "disk-full": 0.7,
    "disk-lying": 1.0,
    "disk-hanging": 1.0,
    "disk-slow": 1.0,
    "power-cut": 0.7,
}

_FIRST = 1.0
_DRIFTS_FROM = 100

_PEER_FAULTS_FROM = 200
PEER_FAULTS = ("peer-cut", "peer-stall", "peer-lying")
"""What happens between workers. Drawn apart too."""

LEADER_DRIFT = "leader-drift"
"""An entry of a leader's index is lost, added, or gets wrong tiers, and nobody is told. Drawn apart from the others:
each seed keeps those that it had.
"""


def draw_faults(streams: Streams, chaos_seconds: float) -> list[Fault]:
    """This seed's faults: some kinds, at times of their own; a few seeds have none, a few have many."""
    drawn = [
        *_draw_chaos(streams, chaos_seconds),
        *_draw_drifts(streams, chaos_seconds),
        *_draw_peer_faults(streams, chaos_seconds),
    ]
    return sorted(drawn, key=lambda one: one.at)


def _draw_chaos(streams: Streams, chaos_seconds: float) -> list[Fault]:
    draw = streams.of("faults")
    kinds = [kind for kind in WEIGHTS if draw.random() < 0.5]
    count = draw.choice([0, 2, 4, 6, 9, 14, 20])
    if not kinds:
        return []
    chosen = draw.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=count)
    times = sorted(draw.uniform(_FIRST, chaos_seconds) for _ in range(count))
    return [_fault(number, at, kind, draw) for number, (at, kind) in enumerate(zip(times, chosen, strict=True))]


def _draw_drifts(streams: Streams, chaos_seconds: float) -> list[Fault]:
    draw = streams.of(f"faults/{LEADER_DRIFT}")
    count = draw.choice([0, 0, 1, 3])
    return [_fault(_DRIFTS_FROM + i, draw.uniform(_FIRST, chaos_seconds), LEADER_DRIFT, draw) for i in range(count)]


def _draw_peer_faults(streams: Streams, chaos_seconds: float) -> list[Fault]:
    draw = streams.of("faults/peers")
    count = draw.choice([0, 0, 2, 6])
    kinds = draw.choices(PEER_FAULTS, k=count)
    return [
        _fault(_PEER_FAULTS_FROM + i, draw.uniform(_FIRST, chaos_seconds), kind, draw) for i, kind in enumerate(kinds)
    ]


def _fault(number: int, at: float, kind: str, draw: random.Random) -> Fault:
    return Fault(number, at, kind, draw.random(), draw.random())
