"""What a scrape sees: all series of a part from the start, the counted numbers, clean by promtool."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.exposition import Metrics, render
from blockyard.common.metrics.reports import EngineReports
from blockyard.common.metrics.spec import Part
from blockyard.common.metrics.table import of_part

WORKER = {"cluster": "default", "worker": "node-a"}
LEADER = {"cluster": "default", "leader": "leader-1"}


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = render(registry)[0].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return samples(registry)[(name, frozenset(labels.items()))]


@pytest.mark.parametrize(("part", "identity"), [(Part.WORKER, WORKER), (Part.LEADER, LEADER)])
def test_every_metric_of_the_part_is_there_from_the_start(part: Part, identity: dict[str, str]) -> None:
    registry = CollectorRegistry()
    Metrics(registry, part, identity)
    assert {name for name, _ in samples(registry)} == {metric.name for metric in of_part(part)}


def test_a_core_and_its_shell_count_into_one_place() -> None:
    registry, counters = CollectorRegistry(), Counters("worker")
    metrics = Metrics(registry, "worker", WORKER, counters=counters)
    counters.add("blockyard_worker_evictions_total", 2, reason="room")
    metrics.inc("blockyard_worker_evictions_total", 1, reason="room")
    assert value(registry, "blockyard_worker_evictions_total", reason="room", **WORKER) == 3
    assert value(registry, "blockyard_worker_evictions_total", reason="slab", **WORKER) == 0


def test_gauges_are_refreshed_at_each_scrape() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "worker", WORKER)
    ages = iter((1.0, 2.0))
    metrics.before_scrape(lambda: metrics.set("blockyard_worker_oldest_pin_age_seconds", next(ages)))
    assert value(registry, "blockyard_worker_oldest_pin_age_seconds", **WORKER) == 1
    assert value(registry, "blockyard_worker_oldest_pin_age_seconds", **WORKER) == 2


def test_engines_come_and_go_with_their_series() -> None:
    registry, engines = CollectorRegistry(), EngineReports()
    Metrics(registry, "worker", WORKER, engines=engines)
    engines.take("engine-1", [("blockyard_engine_acquire_seconds", "0.005", 2.0)])
    engines.take("engine-1", [("blockyard_engine_acquire_seconds", "sum", 0.006)])
    labels = {"engine": "engine-1", **WORKER}
    assert value(registry, "blockyard_engine_acquire_seconds_bucket", le="0.0025", **labels) == 0
    assert value(registry, "blockyard_engine_acquire_seconds_bucket", le="+Inf", **labels) == 2
    assert value(registry, "blockyard_engine_acquire_seconds_sum", **labels) == 0.006
    assert value(registry, "blockyard_engine_hit_tokens_total", **labels) == 0
    engines.forget("engine-1")
    assert not [name for name, _ in samples(registry) if name.startswith("blockyard_engine_")]


def test_refused_updates_are_shown() -> None:
    registry, engines = CollectorRegistry(), EngineReports()
    metrics = Metrics(registry, "worker", WORKER, counters=Counters("worker", strict=False), engines=engines)
    metrics.inc("blockyard_worker_evictions_total", 1, reason="mood")
    engines.take("engine-1", [("blockyard_engine_of_tomorrow_total", "", 1.0)])
    assert value(registry, "blockyard_worker_metric_updates_refused_total", **WORKER) == 2


def test_identity_must_be_the_parts() -> None:
    with pytest.raises(ValueError, match="identity of a leader"):
        Metrics(CollectorRegistry(), "leader", WORKER)


def test_a_part_registers_once() -> None:
    registry = CollectorRegistry()
    Metrics(registry, "worker", WORKER)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Metrics(registry, "worker", WORKER)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_promtool_finds_nothing_to_complain_of() -> None:
    for part, identity in ((Part.WORKER, WORKER), (Part.LEADER, LEADER)):
        registry, engines = CollectorRegistry(), EngineReports()
        Metrics(registry, part, identity, engines=engines if part is Part.WORKER else None)
        engines.take("engine-1", [])
        found = subprocess.run(
            ["promtool", "check", "metrics"], input=render(registry)[0], capture_output=True, timeout=60
        )
        assert (found.returncode, found.stdout + found.stderr) == (0, b"")
