"""Clean seeds that add up over runs of the same code. Owns the file that says how many there were; judges nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sim.digest import first_seed
from sim.report import Totals


@dataclass(slots=True)
class Tally:
    """Of one digest. `next` is how far the next run begins after the digest's first seed."""

    seeds: int = 0
    next: int = 0
    violations: int = 0
    faults: int = 0
    reads_checked: int = 0
    real_seconds: float = 0.0


class Ledger:
    """Kept beside the code, never in it. A file that cannot be read is an error and is left alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tallies: dict[str, Tally] = {}
        if path.exists():
            try:
                self._tallies = {digest: Tally(**tally) for digest, tally in json.loads(path.read_text()).items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise SystemExit(f"{path} is not a ledger of seeds ({error}); right: remove it") from None

    def of(self, digest: str) -> Tally:
        return self._tallies.setdefault(digest, Tally())

    def add(self, digest: str, totals: Totals) -> Tally:
        """Add a run's totals and write the file."""
        tally = self.of(digest)
        tally.seeds += totals.seeds
        tally.next = max(tally.next, totals.last + 1 - first_seed(digest))
        tally.violations += len(totals.failures)
        tally.faults += totals.injected.total()
        tally.reads_checked += totals.numbers["reads checked"]
        tally.real_seconds = round(tally.real_seconds + totals.real_seconds, 1)
        content = json.dumps({digest: asdict(tally) for digest, tally in self._tallies.items()}, indent=1)
        self._path.write_text(content + "\n")
        return tally
