"""Question: what does the leader cost and how long do its clients wait, at 1,000 workers and 10 million chunks?

A real etcd, two real leaders and `--real` real workers, a few with an engine that stores. The other workers are
generated: a few processes hold one link each for them, with the workers' own registration, link and outbox over made-up
chunks, whose keys follow from counters. In turn: all link at once, with empty memory; questions one at a time; a window
of `--seconds` for each `--rate` of changes per worker; the index compared with what the workers hold; `kill -9` of the
leader for each `--rebuild-rate`, and compared again.

    .venv/bin/python benchmarks/leader_scale.py
    .venv/bin/python benchmarks/leader_scale.py --workers 1000 --real 50 --chunks 10000000 --rate 25,50,100,200 \\
        --seconds 30 --rebuild-rate 0,20 --json benchmarks/results/leader_scale_10m.json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

from scale import phases, truth
from scale.engine_load import EngineLoad
from scale.generator import Task
from scale.latency import Prompts, alone
from scale.processes import ScaleCluster, Usage, favour, wait

T = TypeVar("T")

VERIFIED_WORKERS = 20


def rates(text: str) -> list[float]:
    """Numbers with commas between them."""
    return [float(part) for part in text.split(",") if part]


def arguments() -> argparse.Namespace:
    """What the run is to be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=40, help="in total")
    parser.add_argument("--real", type=int, default=3, help="of them, `blockyard worker` processes")
    parser.add_argument("--engines", type=int, default=1, help="real workers with an engine that stores")
    parser.add_argument("--generators", type=int, default=2, help="processes that the other workers share")
    parser.add_argument("--chunks", type=int, default=40_000, help="held in total by generated workers")
    parser.add_argument("--rate", type=rates, default=[50.0, 200.0], help="changes per worker and second, in turn")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate")
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between a worker's deltas")
    parser.add_argument("--rebuild-rate", type=rates, default=[0.0], help="rates at which the leader is killed")
    parser.add_argument("--shared", type=int, default=2000, help="chains that workers have in common")
    parser.add_argument("--share", type=float, default=0.2, help="part of new chains that is drawn from these")
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law for their popularity")
    parser.add_argument("--rounds", type=int, default=200, help="of each question asked alone")
    parser.add_argument("--leader-lease", type=int, default=10, help="seconds")
    parser.add_argument("--worker-lease", type=int, default=60, help="seconds, of generated workers")
    parser.add_argument(
        "--favour", type=int, default=0, help="nice levels that etcd and leaders are preferred by; generators by half"
    )
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that a snapshot of all may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the report here too")
    return parser.parse_args()


class Run:
    """One run; `report` grows with each phase."""

    def __init__(self, options: argparse.Namespace, cluster: ScaleCluster) -> None:
        self._options = options
        self._cluster = cluster
        self._begun = time.monotonic()
        self.report: dict[str, Any] = {
            "settings": {name: value for name, value in vars(options).items() if name != "json"}
        }

    def play(self) -> None:
        """All phases in order."""
        options, cluster = self._options, self._cluster
        leader = cluster.leading()
        empty = Usage.of(cluster.leaders[leader].pid).resident
        self._start()
        self._note("link_all", phases.link_all(cluster, options.patience))
        face, pid = cluster.faces[leader], cluster.leaders[leader].pid
        self._note("memory", phases.memory(face, pid, empty))
        prompts = Prompts(face, cluster.generators)
        self._note("prompts", prompts.found)
        self._note("idle", phases.steady(cluster, prompts, 0.0, options.seconds, options.seed))
        idle = self.report["idle"]["cpu_share"][leader]
        self._note("alone", alone(face, pid, prompts, options.rounds, idle))
        with EngineLoad(cluster, min(options.engines, options.real)) as load:
            windows = [
                self._say(f"rate {rate:g}", phases.steady(cluster, prompts, rate, options.seconds, options.seed))
                for rate in options.rate
            ]
        self._note("windows", windows)
        self._note("memory_after", phases.memory(face, pid, empty))
        self._verify(load)
        rebuilds = [self._rebuild(number, rate, load) for number, rate in enumerate(options.rebuild_rate)]
        self._note("rebuilds", rebuilds)
        self._note("ended_after_s", round(time.monotonic() - self._begun, 1))

    def _start(self) -> None:
        options, cluster = self._options, self._cluster
        begun = time.monotonic()
        cluster.start_real(options.real)
        generated = options.workers - options.real
        each = -(-generated // options.generators)
        cluster.start_generators(
            [self._task(first, min(each, generated - first)) for first in range(0, generated, each)]
        )
        wait(self._real_live, options.patience, "every real worker is live")
        self._say("started", {"seconds": round(time.monotonic() - begun, 1)})

    def _task(self, first: int, workers: int) -> Task:
        options = self._options
        return Task(
            etcd="",
            cluster="",
            name=f"generated-{first:04}",
            first=first,
            workers=workers,
            chunks=options.chunks // (options.workers - options.real),
            shared=options.shared,
            share=options.share,
            exponent=options.exponent,
            seed=options.seed,
            lease_ttl=options.worker_lease,
            interval=options.interval,
        )

    def _real_live(self) -> bool:
        self._cluster.check_alive()
        workers = self._cluster.faces[self._cluster.leading()].json("/v1/workers")["workers"]
        live = [one for one in workers if one["state"] == "live"]
        return len(live) == len(self._cluster.real)

    def _verify(self, load: EngineLoad) -> dict[str, int]:
        """The index is what the workers hold; raises IndexIsWrong if not."""
        options, cluster = self._options, self._cluster
        face = cluster.faces[cluster.leading()]
        truth.wait_settled(cluster.generators, options.patience)
        return self._say(
            "verified",
            {
                "copies": truth.wait_counts(face, cluster.generators, options.patience),
                "chains": truth.check_chains(face, cluster.generators, VERIFIED_WORKERS, options.seed),
                "engine_keys": truth.check_engines(face, load.stored),
            },
        )

    def _rebuild(self, number: int, rate: float, load: EngineLoad) -> dict[str, Any]:
        rebuilt = self._say(f"rebuild at {rate:g}", phases.rebuild(self._cluster, rate, self._options.patience))
        rebuilt["verified"] = self._verify(load)
        self._cluster.start_leader(f"leader-{number + 2}")
        return rebuilt

    def _note(self, name: str, found: Any) -> None:
        self.report[name] = found
        if name not in ("windows", "rebuilds"):
            self._say(name, found)

    def _say(self, name: str, found: T) -> T:
        shown = {key: value for key, value in found.items() if key != "curve"} if isinstance(found, dict) else found
        print(f"{time.monotonic() - self._begun:7.1f} s  {name}: {json.dumps(shown)}", file=sys.stderr, flush=True)
        return found


def as_text(report: dict[str, Any]) -> str:
    """JSON with a phase on each line: growth is told by hundreds of numbers."""
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(found)}" for name, found in report.items()) + "\n}"


def main() -> int:
    """Run, and print the report as JSON."""
    options = arguments()
    # As with Ctrl-C: all that was started ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if not 0 <= options.real < options.workers:
        raise SystemExit(f"--real {options.real} must be less than --workers {options.workers}")
    favour(os.getpid(), options.favour)
    with ScaleCluster(options.leader_lease, options.favour) as cluster:
        run = Run(options, cluster)
        run.play()
    text = as_text(run.report)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
