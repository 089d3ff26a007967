"""Entry of `blockyard demo`: arguments, signals, exit code. What happens in between is the scenario's.

Whatever ends the run, what it started is gone afterwards; a signal during that clean-up waits for its end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from pathlib import Path

from rich.console import Console

from blockyard.cli.demo import report
from blockyard.cli.demo.chat_client import RequestFailed
from blockyard.cli.demo.cluster import DemoCluster
from blockyard.cli.demo.findings import Findings
from blockyard.cli.demo.leader_client import LeaderSilent
from blockyard.cli.demo.processes import ProcessFailed
from blockyard.cli.demo.scenario import play
from blockyard.cli.demo.stages import Stages
from blockyard.cli.demo.worker_client import WorkerSilent

REPORT = Path("demo-report.json")
DID_NOT_HOLD = 1
INTERRUPTED = 130


def run(args: list[str]) -> int:
    """The whole demo; 0 if everything held."""
    options = _parse(args)
    console = Console()
    try:
        return asyncio.run(_run(console, options.keep, options.logs))
    except KeyboardInterrupt:
        return INTERRUPTED


def _parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="blockyard demo",
        description="Real etcd, a leader, a worker and two vLLM engines on this machine; "
        f"shows when a prompt is computed, and writes {REPORT} here.",
    )
    parser.add_argument("--keep", action="store_true", help="keep everything running at the end, until Ctrl-C")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of all processes here")
    return parser.parse_args(args)


async def _run(console: Console, keep: bool, logs: Path | None) -> int:
    started = time.monotonic()
    _cancel_on_signals()
    findings = Findings()
    cluster = DemoCluster(logs)
    try:
        with Stages(console) as stages:
            await _play(cluster, stages, findings)
        if keep and not findings.broken_off:
            report.show(console, findings)
            await _stay(console, cluster)
    except asyncio.CancelledError:
        console.print("[yellow]interrupted; ending all processes[/]")
        return INTERRUPTED
    finally:
        # Blocks the loop on purpose: a signal that comes now is noted and changes nothing.
        findings.broken_off += cluster.close()
    seconds = time.monotonic() - started
    report.show(console, findings)
    report.write(REPORT, findings, seconds)
    console.print(f"{seconds:.0f} s in all; details are in {REPORT}", highlight=False)
    return DID_NOT_HOLD if findings.problems() else 0


def _cancel_on_signals() -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _play(cluster: DemoCluster, stages: Stages, findings: Findings) -> None:
    """What goes wrong on the way is one of the findings."""
    try:
        await play(cluster, stages, findings)
    except* (ProcessFailed, RequestFailed, LeaderSilent, WorkerSilent) as group:
        findings.broken_off += [str(error) for error in _leaves(group)]
        findings.broken_off += [
            f"{process.name} has ended; its last lines:\n{process.log_tail()}" for process in cluster.ended()
        ]


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group of groups."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


async def _stay(console: Console, cluster: DemoCluster) -> None:
    """Until Ctrl-C or SIGTERM."""
    for engine in cluster.engines:
        console.print(f"{engine.name}: {engine.server.url()}/v1 (model {engine.server.served_name})")
    console.print(f"leader: {cluster.plane.leader_url}/v1/workers")
    console.print(f"worker: {cluster.plane.worker_url}/metrics")
    console.print("Ctrl-C ends all of it.")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
