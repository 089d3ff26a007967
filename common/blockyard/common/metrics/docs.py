"""`docs/metrics.md`, written from the table: `python -m blockyard.common.metrics.docs > docs/metrics.md`.

Owns the page's form; must never know a metric that the table does not.
"""

from __future__ import annotations

import sys

from blockyard.common.metrics.spec import IDENTITY, Equality, Metric, Part
from blockyard.common.metrics.table import EQUALITIES, of_part

INTRODUCTION = """\
# Metrics

Written from the table in `common/blockyard/common/metrics/`; edit the table, not this page, then run
`python -m blockyard.common.metrics.docs > docs/metrics.md`. Names follow Prometheus: base units, counters end
in `_total`. Every series carries its part's identity labels. All values of a label are listed; series with
listed labels exist from the start, as 0.
"""

TITLES = {
    Part.WORKER: ("Worker", "Shown by the worker's `/metrics`."),
    Part.LEADER: ("Leader", "Shown by each leader's `/metrics`, standbys included."),
    Part.ENGINE: (
        "Engines",
        "Counted in vLLM's processes, loads and stores once they have ended. Shown twice, so sum over one of the two: "
        "by the worker they are attached to, and by vLLM's own `/metrics`, there with vLLM's labels `model_name` and "
        "`engine` (a number) instead, as of the engine's last step.",
    ),
}


def page() -> str:
    """The whole page."""
    sections = [INTRODUCTION, *(_section(part) for part in Part), _equalities()]
    return "\n".join(sections)


def _section(part: Part) -> str:
    title, where = TITLES[part]
    identity = ", ".join(f"`{name}`" for name in IDENTITY[part])
    rows = "\n".join(_row(metric) for metric in of_part(part))
    return (
        f"## {title}\n{where} Identity labels: {identity}.\n\n"
        f"| name | type | labels | meaning |\n|---|---|---|---|\n{rows}\n"
    )


def _row(metric: Metric) -> str:
    labels = "<br>".join(
        f"`{label.name}`: {', '.join(label.values) if label.values else 'free text'}" for label in metric.labels
    )
    where = "" if metric.at_worker else " By vLLM alone."
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning}{where} |"


def _equalities() -> str:
    rows = "\n".join(_equality(equality) for equality in EQUALITIES)
    return (
        "## What adds up\nEach sum is over all labels. Tests check these after scripted runs.\n\n"
        f"| name | equality | meaning |\n|---|---|---|\n{rows}\n"
    )


def _equality(equality: Equality) -> str:
    parts = " + ".join(f"`{name}`" for name in equality.parts)
    return f"| {equality.name} | `{equality.whole}` = {parts} | {equality.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(page())
