"""Runs one seed. Owns what a result says, and that nothing real is used meanwhile: wall time jumps with the world."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from unittest.mock import patch

from sim.broken import VARIANTS
from sim.faults import Fault
from sim.violation import Violation
from sim.world import World


@dataclass(slots=True)
class Result:
    """What came of one seed. `violation` is empty when all held."""

    seed: int
    variant: str
    world: World
    violation: str = ""
    name: str = ""
    key: bytes = b""
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violation

    @property
    def numbers(self) -> Counter[str]:
        return self.world.numbers


def run_seed(seed: int, variant: str = "nothing", keep: Collection[int] | None = None) -> Result:
    """One seed, with only the faults whose numbers are in `keep` (None: all)."""
    with VARIANTS[variant]() as broken:
        world = World(seed, broken, _chosen(keep))
        result = Result(seed, variant, world)
        try:
            with patch.object(time, "time", lambda: world.wall + world.clock.now):
                world.run()
        except Exception as error:
            _note(result, error)
    result.faults = [fault for fault in world.faults if keep is None or fault.number in keep]
    return result


def _chosen(keep: Collection[int] | None) -> Callable[[Fault], bool]:
    return lambda fault: keep is None or fault.number in keep


def _note(result: Result, error: Exception) -> None:
    result.violation = f"at {result.world.clock.now:.3f} s: {type(error).__name__}: {error}"
    result.name = getattr(error, "name", None) or type(error).__name__
    if isinstance(error, Violation):
        result.key = error.key
    else:
        result.violation += "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
