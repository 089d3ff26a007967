"""Dashboard and alerts: made from the table, up to date, and every panel's query finds a series."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.exposition import Metrics
from blockyard.common.metrics.reports import EngineReports, drain
from blockyard.common.metrics.spec import Kind, Metric, Part
from blockyard.common.metrics.table import TABLE, of_part
from support.prometheus_server import available, prometheus_over

ROOT = Path(__file__).parents[2]
OVERVIEW = ROOT / "dashboards" / "json" / "overview.json"
ALERTS = ROOT / "dashboards" / "alerts" / "blockyard.yml"
SERIES_DEADLINE = 15.0

needs_prometheus = pytest.mark.skipif(not available, reason="prometheus or promtool is not on PATH")


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(OVERVIEW.read_text(encoding="utf-8"))
    return loaded


def queries() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel["targets"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def metrics_of(expr: str) -> set[str]:
    names = re.findall(r"\bblockyard_\w+", expr)
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name not in TABLE else name for name in names}


def rendered(expr: str) -> str:
    """An expression as Grafana sends it with all clusters and workers chosen."""
    for variable, value in (("$cluster", ".*"), ("$worker", ".*"), ("$__rate_interval", "5s")):
        expr = expr.replace(variable, value)
    assert "$" not in expr, expr
    return expr


@pytest.mark.parametrize(
    "expr", [expr for _, expr in queries()] + [rule["expr"] for rule in alerts()], ids=lambda expr: expr[:70]
)
def test_expressions_use_declared_metrics_and_labels(expr: str) -> None:
    assert metrics_of(expr) and metrics_of(expr) <= set(TABLE)
    for name, label, value in re.findall(r'(blockyard_\w+)\{(\w+)!?="([\w-]+)"\}', expr):
        (declared,) = [known for known in TABLE[name].labels if known.name == label]
        assert value in declared.values


def test_variables_query_declared_metrics() -> None:
    variables = {item["name"]: item for item in dashboard()["templating"]["list"]}
    assert list(variables) == ["datasource", "cluster", "worker"]
    assert "blockyard_worker_uptime_seconds" in TABLE and "blockyard_leader_uptime_seconds" in TABLE
    assert metrics_of(variables["worker"]["query"]) == {"blockyard_worker_uptime_seconds"}


def test_each_panel_says_what_it_shows() -> None:
    panels = dashboard()["panels"]
    assert len(panels) == 12
    assert len({panel["title"] for panel in panels}) == 12
    for panel in panels:
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_legends_name_labels_that_the_query_keeps() -> None:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            kept = re.match(r"sum by \(([^)]*)\)", target["expr"])
            labels = set(kept[1].split(", ")) if kept else set()
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == labels


@pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None,
    reason="the `dashboards` extra is not installed",
)
def test_the_json_is_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "dashboards" / "build.py", tmp_path], check=True, timeout=60)
    made = (tmp_path / OVERVIEW.name).read_text(encoding="utf-8")
    assert made == OVERVIEW.read_text(encoding="utf-8"), "run: python dashboards/build.py"


@needs_prometheus
@pytest.mark.parametrize("arguments", [("check", "rules", "blockyard.yml"), ("test", "rules", "blockyard_test.yml")])
def test_alert_rules(arguments: tuple[str, ...]) -> None:
    found = subprocess.run(["promtool", *arguments], cwd=ALERTS.parent, capture_output=True, timeout=60)
    assert found.returncode == 0, (found.stdout + found.stderr).decode()


@needs_prometheus
def test_every_panel_and_alert_finds_its_series(tmp_path: Path) -> None:
    """Counters of the table that grow at each scrape, a real Prometheus, and each panel's own query."""
    registry = CollectorRegistry()
    expose_all_growing(registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    wanted = dict.fromkeys(rendered(expr) for _, expr in queries())
    try:
        with prometheus_over([f"127.0.0.1:{server.server_port}"], tmp_path) as prometheus:
            deadline = time.monotonic() + SERIES_DEADLINE
            while missing := [expr for expr in wanted if not moving(prometheus.query(expr))]:
                assert time.monotonic() < deadline, f"no series, or only zeros, for {missing}"
                time.sleep(0.2)
            for rule in alerts():
                prometheus.query(rule["expr"])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def moving(series: list[dict[str, Any]]) -> bool:
    return bool(series) and all(float(found["value"][1]) > 0 for found in series)


def expose_all_growing(registry: CollectorRegistry) -> None:
    """A worker with one engine and a leader, each of whose series is above zero and grows at each scrape."""
    engine, reports = Counters(Part.ENGINE), EngineReports()
    worker = Metrics(registry, Part.WORKER, {"cluster": "default", "worker": "node-a"}, engines=reports)
    leader = Metrics(registry, Part.LEADER, {"cluster": "default", "leader": "leader-1"})

    def grow() -> None:
        for counters in (worker.counters, leader.counters, engine):
            for metric in of_part(counters.part):
                move(counters, metric)
        leader.set("blockyard_leader_is_leader", 1)
        reports.take("engine-1", drain(engine))

    worker.before_scrape(grow)


def move(counters: Counters, metric: Metric) -> None:
    for values in product(*(label.values or ("any",) for label in metric.labels)):
        labels = dict(zip(metric.label_names, values, strict=True))
        if metric.kind is Kind.COUNTER:
            counters.add(metric.name, 7, **labels)
        elif metric.kind is Kind.GAUGE:
            counters.set(metric.name, 7, **labels)
        else:
            counters.observe(metric.name, 0.002, **labels)
