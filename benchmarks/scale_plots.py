"""Draws the charts of docs/scale.md from the reports of benchmarks/leader_scale.py, the largest run first.

    .venv/bin/python benchmarks/scale_plots.py benchmarks/results/leader_scale_10m.json \\
        benchmarks/results/leader_scale_1m.json --folder docs/images
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from scale.svg import Line, chart

MILLION = 1e6
GIB = 1 << 30


def size(report: dict[str, Any]) -> str:
    """The number of chunks, in words."""
    return f"{report['settings']['chunks'] / MILLION:g} M chunks"


def cost(report: dict[str, Any]) -> str:
    """What changes cost the leader."""
    windows = [report["idle"], *report["windows"]]
    leader = [(one["changes_per_s"] / 1e3, one["cpu_share"][one["leader"]]) for one in windows]
    return chart(
        f"The leader's CPU, {size(report)}, {report['settings']['workers']} workers",
        "thousand changes a second",
        "cores",
        [Line("leader", leader)],
    )


def convergence(report: dict[str, Any]) -> str:
    """How long it takes from the sending of a change until it is visible."""
    windows = [report["idle"], *report["windows"]]
    lines = [
        Line(name, [(one["changes_per_s"] / 1e3, one["waits"]["convergence_once_sent"][key]) for one in windows])
        for name, key in (("median", "p50_ms"), ("longest", "max_ms"))
    ]
    return chart("From a change that is sent to its answer", "thousand changes a second", "ms", lines)


def rebuilding(reports: list[dict[str, Any]]) -> str:
    """How the index of a standby grows after the leader was killed; a rate is that of each worker's changes."""
    lines = []
    for report in reports:
        for rebuilt in report["rebuilds"]:
            leads = rebuilt["leads_after_s"]
            curve = [(one["s"] - leads, one["copies"] / rebuilt["chunks"]) for one in rebuilt["curve"]]
            rate = rebuilt["rate_per_worker"]
            name = f"{size(report)}, {rate:g}/s" if rate else size(report)
            lines.append(Line(name, [(max(0.0, at), min(1.0, part)) for at, part in curve if at > -1.0]))
    return chart("The new leader's index", "seconds since it leads", "part of all chunks that it knows", lines)


def memory(reports: list[dict[str, Any]]) -> str:
    """The leader's memory as its index grows."""
    lines = [
        Line(size(report), [(one["copies"] / MILLION, one["resident"] / GIB) for one in report["link_all"]["curve"]])
        for report in reports
    ]
    return chart("The leader's resident memory", "million chunks in the index", "GiB", lines)


def main() -> None:
    """Read the reports, write the charts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in options.reports]
    options.folder.mkdir(parents=True, exist_ok=True)
    charts = {
        "scale_cpu": cost(reports[0]),
        "scale_convergence": convergence(reports[0]),
        "scale_rebuild": rebuilding(reports),
        "scale_memory": memory(reports),
    }
    for name, text in charts.items():
        (options.folder / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
