"""What is printed of runs: totals, and of a failure all that one needs to look into it. Owns words alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from sim.run import Result

_LAST_LINES = 40


@dataclass(slots=True)
class Totals:
    """Sums over many seeds, and what is told of those that failed."""

    seeds: int = 0
    last: int = -1
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    real_seconds: float = 0.0
    events: int = 0
    slowest_heal: float = 0.0
    numbers: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result, story: str) -> None:
        self.seeds += 1
        self.last = max(self.last, result.seed)
        self.seconds += result.world.clock.now
        self.events += result.world.clock.events
        self.numbers += result.numbers
        self.injected += result.world.injected
        if result.ok:
            self.slowest_heal = max(self.slowest_heal, result.world.healed_at or 0.0)
        else:
            self.failures.append(story)

    def join(self, other: Totals) -> None:
        """Add those of a process that ran at the same time."""
        self.seeds += other.seeds
        self.last = max(self.last, other.last)
        self.failures += other.failures
        self.seconds += other.seconds
        self.real_seconds = max(self.real_seconds, other.real_seconds)
        self.events += other.events
        self.slowest_heal = max(self.slowest_heal, other.slowest_heal)
        self.numbers += other.numbers
        self.injected += other.injected

    def lines(self) -> Iterator[str]:
        yield f"{self.seeds} seeds, {len(self.failures)} violations"
        yield f"{self.injected.total()} faults injected, {self.numbers['reads checked']} reads checked"
        yield f"{self.seconds:.0f} virtual seconds, {self.events} events, {self.real_seconds:.1f} real seconds"
        yield f"slowest heal {self.slowest_heal:.2f} virtual seconds"
        yield "faults injected:"
        yield from _table(self.injected)
        yield "seen:"
        yield from _table(self.numbers)


def failure(result: Result) -> Iterator[str]:
    """The command that repeats it, the faults that it took, and the story of the key concerned."""
    keep = ",".join(str(fault.number) for fault in result.faults)
    variant = "" if result.variant == "nothing" else f" --broken {result.variant}"
    yield f"seed {result.seed}: {result.violation}"
    yield f"again: PYTHONPATH=tests python -m sim --seed {result.seed} --faults '{keep}'{variant} --trace"
    yield f"faults, of {len(result.world.faults)}:"
    yield from (f"  {fault}" for fault in result.faults)
    if result.key:
        yield f"story of key {result.key.hex()[:8]}:"
        yield from _story(result)


def _story(result: Result) -> Iterator[str]:
    for worker in [*result.world.workers.values(), *result.world.zombies]:
        for one in worker.core.story(result.key):
            what = f"{one.before.name} --{one.event.name}--> {one.after.name}"
            yield f"  {worker.process.name} step {one.step}: {what} (slot {one.slot}, generation {one.generation})"
    for leader in result.world.leaders.values():
        for claim in leader.core.story(result.key):
            what = f"{claim.node} holds it in tiers {claim.tiers}, {claim.cause}"
            yield f"  {leader.process.name} {claim.at:.3f} s: {what}"


def _table(counts: Counter[str]) -> Iterator[str]:
    return (f"  {name:30} {count}" for name, count in sorted(counts.items()))
