"""Makes a failing run small: leaves out faults as long as it still fails in the same way. Owns the search."""

from __future__ import annotations

from sim.run import Result, run_seed

MAX_RUNS = 120
"""Runs spent on one failing seed at most."""


def shrink(failed: Result) -> Result:
    """The smallest failing run that was found: halves are dropped first, then single faults."""
    return _Search(failed).smallest()


class _Search:
    def __init__(self, failed: Result) -> None:
        self._best = failed
        self._runs = 0

    def smallest(self) -> Result:
        if self._fails_with([]):
            return self._best
        size = max(1, len(self._best.faults) // 2)
        while True:
            dropped = self._drop_pieces(size)
            if size == 1 and not dropped:
                return self._best
            if not dropped:
                size = max(1, size // 2)
            if self._runs >= MAX_RUNS:
                return self._best

    def _drop_pieces(self, size: int) -> bool:
        """Try without each piece of so many faults; True if one was not needed."""
        dropped = False
        at = 0
        while at < len(self._best.faults) and self._runs < MAX_RUNS:
            numbers = [fault.number for fault in self._best.faults]
            if self._fails_with(numbers[:at] + numbers[at + size :]):
                dropped = True
            else:
                at += size
        return dropped

    def _fails_with(self, keep: list[int]) -> bool:
        self._runs += 1
        result = run_seed(self._best.seed, self._best.variant, keep)
        if result.name != self._best.name or result.ok:
            return False
        self._best = result
        return True
