"""The table of metrics: Prometheus' conventions, equalities over what exists, and its page."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest

from blockyard.common.messages import attach
from blockyard.common.messages.states import KeyState
from blockyard.common.metrics import docs, engine, worker
from blockyard.common.metrics.spec import IDENTITY, Kind, Metric, Part
from blockyard.common.metrics.table import EQUALITIES, METRICS, TABLE, of_part
from blockyard.engine import detached

ROOT = Path(__file__).parents[2]


def test_names_are_unique() -> None:
    assert len(TABLE) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_declaration_is_well_formed(metric: Metric) -> None:
    assert re.fullmatch(rf"blockyard_{metric.part}_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    assert not re.search(r"_(ms|micros|minutes|kb|mb|gb|percent)(_|$)", metric.name), "base units only"
    assert metric.meaning.endswith(".") and "|" not in metric.meaning
    assert not set(metric.label_names) & {*IDENTITY[metric.part], "le", "job", "instance"}
    assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    for label in metric.labels:
        assert len(set(label.values)) == len(label.values)
        assert label.values or metric.name.endswith("_build_info"), f"{label.name} is not bounded"


def test_a_part_has_few_series() -> None:
    for metric in METRICS:
        series = 1
        for label in metric.labels:
            series *= max(1, len(label.values))
        assert series <= 64, metric.name


def test_equalities_name_unlike_sums_of_one_part() -> None:
    for equality in EQUALITIES:
        named = [TABLE[name] for name in (equality.whole, *equality.parts)]
        assert len({metric.part for metric in named}) == 1
        assert equality.whole not in equality.parts


def test_miss_reasons_are_spelt_as_the_wire_spells_them() -> None:
    assert set(worker.MISS_REASON.values) < {state.label for state in KeyState}
    assert KeyState.HIT.label not in worker.MISS_REASON.values


def test_detach_reasons_are_the_engines_words() -> None:
    words = {value for name, value in vars(detached).items() if name.isupper() and isinstance(value, str)}
    assert set(engine.DETACH_REASON.values) == words


def test_an_engines_whole_report_fits_one_message() -> None:
    cells = 0
    for metric in of_part(Part.ENGINE):
        series = prod(len(label.values) for label in metric.labels)
        cells += series * (len(metric.buckets) + 2 if metric.buckets else 1)
        assert len(metric.labels) <= 1
    (limit,) = attach.EngineCounters.__annotations__["counts"].__metadata__
    assert cells <= limit.max_length


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == docs.page(), "run: python -m blockyard.common.metrics.docs > docs/metrics.md"
