"""Counting without Prometheus: what is refused, what adds up, how engines' numbers travel."""

from __future__ import annotations

import subprocess
import sys

import pytest

from blockyard.common.codec import Decoder, encode
from blockyard.common.messages import attach
from blockyard.common.metrics.counters import Counters, UnknownMetric
from blockyard.common.metrics.equalities import broken
from blockyard.common.metrics.reports import EngineReports, drain

EVICTIONS = "blockyard_worker_evictions_total"
ACQUIRE = "blockyard_engine_acquire_seconds"


def test_counts_by_label() -> None:
    counters = Counters("worker")
    counters.add(EVICTIONS, 2, reason="room")
    counters.add(EVICTIONS, reason="room")
    counters.add(EVICTIONS, reason="slab")
    assert counters.get(EVICTIONS, reason="room") == 3
    assert counters.total(EVICTIONS) == 4


def test_a_bound_series_counts_into_the_same_number() -> None:
    counters = Counters("worker")
    add = counters.adder(EVICTIONS, reason="room")
    assert list(counters.rows()) == []
    add(2)
    counters.add(EVICTIONS, reason="room")
    assert counters.get(EVICTIONS, reason="room") == 3
    with pytest.raises(UnknownMetric, match="never falls"):
        add(-1)
    with pytest.raises(UnknownMetric, match="'mood' is not one of room"):
        counters.adder(EVICTIONS, reason="mood")


def test_a_bound_series_that_is_not_in_the_table_is_refused_each_time() -> None:
    counters = Counters("worker", strict=False)
    counters.adder(EVICTIONS, reason="mood")(1)
    assert counters.refused == 2
    assert list(counters.rows()) == []


def test_label_order_does_not_matter() -> None:
    counters = Counters("worker")
    counters.set("blockyard_worker_sessions", 2, role="rank", state="live")
    counters.set("blockyard_worker_sessions", 3, state="live", role="rank")
    assert list(counters.rows()) == [(("blockyard_worker_sessions", "rank", "live"), (3,))]


@pytest.mark.parametrize(
    ("name", "labels", "fault"),
    [
        ("blockyard_worker_evictons_total", {"reason": "room"}, "not in the table"),
        (EVICTIONS, {"reason": "mood"}, "'mood' is not one of room"),
        (EVICTIONS, {}, "has labels"),
        (EVICTIONS, {"reason": "room", "tier": "host"}, "has labels"),
        (EVICTIONS, {"tier": "host"}, "has labels"),
        ("blockyard_leader_deltas_applied_total", {}, "belongs to the leader"),
        ("blockyard_worker_pool_slots", {}, "is a gauge, not a counter"),
    ],
)
def test_undeclared_updates_are_refused(name: str, labels: dict[str, str], fault: str) -> None:
    strict, lenient = Counters("worker"), Counters("worker", strict=False)
    for counters in (strict, lenient):
        counters.add(EVICTIONS, reason="room")
    with pytest.raises(UnknownMetric, match=fault):
        strict.add(name, 1, **labels)
    lenient.add(name, 1, **labels)
    assert lenient.refused == 1
    assert lenient.total(EVICTIONS) == 1


def test_a_counter_never_falls() -> None:
    with pytest.raises(UnknownMetric, match="never falls"):
        Counters("worker").add(EVICTIONS, -1, reason="room")


def test_choose_sets_one_state() -> None:
    counters = Counters("worker")
    counters.choose("blockyard_worker_leader_link", "down")
    counters.choose("blockyard_worker_leader_link", "live")
    assert counters.get("blockyard_worker_leader_link", state="live") == 1
    assert counters.total("blockyard_worker_leader_link") == 1


def test_equalities_name_what_is_off() -> None:
    counters = Counters("worker")
    counters.add("blockyard_worker_acquire_tokens_total", 512)
    counters.add("blockyard_worker_hit_tokens_total", 256, tier="host")
    assert broken(counters) == [
        "misses-explained: blockyard_worker_acquire_tokens_total 512 != "
        "blockyard_worker_hit_tokens_total 256 + blockyard_worker_miss_tokens_total 0"
    ]
    counters.add("blockyard_worker_miss_tokens_total", 256, reason="never-stored")
    assert broken(counters) == []


def test_an_engines_numbers_reach_the_worker_whole() -> None:
    engine, reports = Counters("engine"), EngineReports()
    for seconds in (0.0001, 0.003, 99.0):
        engine.observe(ACQUIRE, seconds)
        engine.add("blockyard_engine_load_failures_total", reason="stale")
        frame = encode(attach.EngineCounters(drain(engine)), attach.MAX_FRAME)
        message = Decoder[attach.EngineCounters](attach.EngineCounters).decode(frame[4:])
        reports.take("engine-1", message.counts)
    assert drain(engine) == []
    ((name, counted),) = reports.engines()
    assert name == "engine-1"
    assert counted.get("blockyard_engine_load_failures_total", reason="stale") == 3
    cells = dict(counted.rows())[(ACQUIRE,)]
    assert (cells[0], cells[5], cells[-2], sum(cells[:-1])) == (1, 1, 1, 3)
    assert cells[-1] == pytest.approx(99.0031)
    assert reports.refused == 0


@pytest.mark.parametrize(
    "increment",
    [
        ("blockyard_engine_of_tomorrow_total", "", 1.0),
        ("blockyard_engine_load_failures_total", "mood", 1.0),
        ("blockyard_engine_hit_tokens_total", "", -1.0),
        ("blockyard_engine_hit_tokens_total", "", float("nan")),
        ("blockyard_engine_hit_tokens_total", "", float("inf")),
        ("blockyard_worker_acquire_keys_total", "", 1.0),
        (ACQUIRE, "7", 1.0),
    ],
)
def test_nonsense_from_an_engine_is_counted_and_dropped(increment: tuple[str, str, float]) -> None:
    reports = EngineReports()
    reports.take("engine-1", [increment, ("blockyard_engine_hit_tokens_total", "", 5.0)])
    ((_, counted),) = reports.engines()
    assert reports.refused == 1
    assert counted.total("blockyard_engine_hit_tokens_total") == 5


def test_engines_are_bounded_and_forgotten() -> None:
    reports = EngineReports(limit=1)
    increment = [("blockyard_engine_hit_tokens_total", "", 5.0)]
    reports.take("engine-1", increment)
    reports.take("engine-2", increment)
    assert [name for name, _ in reports.engines()] == ["engine-1"]
    assert reports.refused == 1
    reports.forget("engine-1")
    reports.take("engine-2", increment)
    assert [name for name, _ in reports.engines()] == ["engine-2"]


def test_counting_loads_no_prometheus() -> None:
    code = (
        "import sys, blockyard.common.metrics.reports, blockyard.common.metrics.equalities\n"
        "sys.exit('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
