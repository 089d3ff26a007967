"""The phases of a scale run: brought up, under load, and after the leader's death. Owns what is measured in each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from scale.latency import Prompts, Watchers
from scale.leader_face import LeaderFace
from scale.processes import ScaleCluster, Usage, machine_cpu, wait

_SETTLING = 3.0
_SAMPLE = 0.5


class Curve:
    """`with Curve(cluster, name) as curve:` records the growth of a leader's index."""

    def __init__(self, cluster: ScaleCluster, leader: str) -> None:
        self._pid = cluster.leaders[leader].pid
        self._face = cluster.faces[leader].another()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)
        self.begun = time.monotonic()
        self.points: list[dict[str, float]] = []

    def __enter__(self) -> Curve:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60.0)
        self._face.close()

    def _record(self) -> None:
        while True:
            self.points.append(self._point())
            if self._stop.wait(_SAMPLE):
                return

    def _point(self) -> dict[str, float]:
        try:
            metrics = self._face.metrics()
        except OSError:
            metrics = {}
        used = Usage.of(self._pid)
        return {
            "s": round(time.monotonic() - self.begun, 2),
            "copies": metrics.get("blockyard_leader_index_copies", 0),
            "keys": metrics.get("blockyard_leader_index_keys", 0),
            "snapshots": metrics.get("blockyard_leader_snapshots_total", 0),
            "cpu": round(used.cpu, 2),
            "resident": used.resident,
        }


def link_all(cluster: ScaleCluster, patience: float) -> dict[str, Any]:
    """Every generated worker registers and links; until the leader knows what all of them hold."""
    leader = cluster.leading()
    before = Usage.of(cluster.leaders[leader].pid)
    expected = sum(generator.ask("state")["held"] for generator in cluster.generators)
    with Curve(cluster, leader) as curve:
        for generator in cluster.generators:
            generator.ask("link")
        wait(lambda: _linked(cluster) and cluster.faces[leader].whole(), patience, "every snapshot is in")
        taken = time.monotonic() - curve.begun
    after = Usage.of(cluster.leaders[leader].pid)
    return {
        "seconds": round(taken, 2),
        "leader_cpu_s": round(after.cpu - before.cpu, 2),
        "leader_cpu_us_per_chunk": round(1e6 * (after.cpu - before.cpu) / max(1, expected), 3),
        **_links(cluster),
        "curve": curve.points,
    }


def memory(face: LeaderFace, pid: int, empty: int) -> dict[str, Any]:
    """What the index takes, against the same leader without a worker."""
    metrics = face.metrics()
    resident = Usage.of(pid).resident
    copies, keys = (metrics[f"blockyard_leader_index_{what}"] for what in ("copies", "keys"))
    return {
        "copies": copies,
        "keys": keys,
        "resident": resident,
        "resident_empty": empty,
        "bytes_per_copy": round((resident - empty) / max(1.0, copies), 1),
        "bytes_per_key": round((resident - empty) / max(1.0, keys), 1),
    }


def steady(cluster: ScaleCluster, prompts: Prompts, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Each generated worker makes `rate` changes a second: a window without a question, and one with many."""
    leader = cluster.leading()
    for generator in cluster.generators:
        generator.ask("rate", rate=rate)
    time.sleep(_SETTLING)
    measured = _window(cluster, leader, seconds)
    with Watchers(cluster.faces[leader], cluster.generators, prompts, seed) as watchers:
        time.sleep(seconds)
    waits = watchers.told()
    return {"rate_per_worker": rate, **measured, "waits": waits, "owed_at_end": _states(cluster)["depth"]}


def _window(cluster: ScaleCluster, leader: str, seconds: float) -> dict[str, Any]:
    """What so many seconds cost."""
    face = cluster.faces[leader]
    before, usage, applied, begun = _states(cluster, True), cluster.usage(), _applied(face), time.monotonic()
    busy = machine_cpu()
    time.sleep(seconds)
    busy = machine_cpu() - busy
    changes, used, window = _applied(face) - applied, cluster.usage(), time.monotonic() - begun
    after = _states(cluster, True)
    sent = {name: after[name] - before[name] for name in after}
    cpu = {role: used[role].cpu - usage[role].cpu for role in used}
    # A ping a second on each link is not counted by those who send it.
    events = sent["deltas"] + sent["others"] + window * (after["linked"] + len(cluster.real))
    return {
        "seconds": round(window, 2),
        "changes_per_s": round(changes / window),
        "changes_per_delta": round(sent["changes"] / max(1.0, sent["deltas"]), 1),
        "events_per_s": round(events / window),
        "withheld_per_s": round(sent["withheld"] / window),
        "leader_cpu_us_per_change": round(1e6 * cpu[leader] / changes, 3) if changes else None,
        "leader_cpu_us_per_event": round(1e6 * cpu[leader] / max(1.0, events), 2),
        "bytes_per_s": _bytes(sent, window),
        "bytes_per_change": _bytes(sent, changes),
        "links_made": sent["links"],
        "snapshots_sent": sent["snapshots"],
        "generator_tick_late_max_ms": round(1e3 * after["tick_lag"], 1),
        "cpu_share": {role: round(used_cpu / window, 3) for role, used_cpu in cpu.items()},
        "cpu_share_of_strangers": round(max(0.0, busy - sum(cpu.values())) / window, 3),
        "leader": leader,
        "leader_resident": used[leader].resident,
    }


def _bytes(sent: dict[str, float], parts: float) -> dict[str, float] | None:
    """To and from the leader, per part; unknown where a link was made anew, as its counts began at 0."""
    if sent["links"] or not parts:
        return None
    return {"to_leader": round(sent["bytes_out"] / parts, 1), "from_leader": round(sent["bytes_in"] / parts, 1)}


def rebuild(cluster: ScaleCluster, rate: float, patience: float) -> dict[str, Any]:
    """kill -9 of the leader while a standby waits and each worker makes `rate` changes a second."""
    old = cluster.leading()
    (standby,) = (name for name in cluster.leaders if name != old)
    for generator in cluster.generators:
        generator.ask("rate", rate=rate)
    time.sleep(_SETTLING)
    before, expected = _states(cluster), sum(generator.ask("state")["held"] for generator in cluster.generators)
    pid = cluster.leaders[standby].pid
    used = Usage.of(pid).cpu
    with Curve(cluster, standby) as curve:
        cluster.end_leader(old)
        killed = time.monotonic()
        leads = wait(lambda: cluster.faces[standby].leads(), patience, f"{standby} leads")
        wait(lambda: _linked(cluster) and cluster.faces[standby].whole(), patience, "every snapshot is in")
        whole = time.monotonic() - killed
    cpu, after = Usage.of(pid).cpu - used, _states(cluster)
    return {
        "rate_per_worker": rate,
        "chunks": expected,
        "leads_after_s": round(leads, 2),
        "whole_after_s": round(whole, 2),
        "from_leading_to_whole_s": round(whole - leads, 2),
        "leader_cpu_s": round(cpu, 2),
        "leader_cpu_us_per_chunk": round(1e6 * cpu / max(1, expected), 3),
        "links_made": after["links"] - before["links"],
        "snapshots_sent": after["snapshots"] - before["snapshots"],
        **_links(cluster),
        "peak_resident": max(point["resident"] for point in curve.points),
        "curve": curve.points,
    }


def _states(cluster: ScaleCluster, wire: bool = False) -> dict[str, float]:
    """All generators' states, added up; the worst lag. `wire` counts bytes too, which asks the kernel for each link."""
    states = [generator.ask("state") | (generator.ask("wire") if wire else {}) for generator in cluster.generators]
    total = Counter[str]()
    for state in states:
        total.update(state)
    return {**total, "tick_lag": max((state["tick_lag"] for state in states), default=0.0)}


def _linked(cluster: ScaleCluster) -> bool:
    cluster.check_alive()
    state = _states(cluster)
    return state["linked"] == state["workers"]


def _links(cluster: ScaleCluster) -> dict[str, float]:
    metrics = cluster.faces[cluster.leading()].metrics()
    names = ("snapshots_total", "resyncs_total", "delta_gaps_total")
    return {f"leader_{name}": metrics.get(f"blockyard_leader_{name}", 0) for name in names}


def _applied(face: LeaderFace) -> float:
    return face.metrics().get("blockyard_leader_deltas_applied_total", 0)
