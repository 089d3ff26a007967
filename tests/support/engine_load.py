"""Load that never rests, by one real engine in a thread: stores that evict, and loads whose bytes are compared.

Owns what each turn asks and what must come of it; whatever else comes is kept for `check`. A few keys are asked for
in every turn, so they may never be evicted: their lookups must hit at the first try, whatever befalls the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.jobs import CopyResult
from blockyard.engine.scheduler_client import Grant
from support.closing import Closing
from support.engine_side import EngineSide, key_of, states

# The same at every engine, so that several workers hold them.
HOT = [key_of(number) for number in range(1, 5)]

_FRESH = 4
_REST_S = 0.02
_PATIENCE_S = 30.0


class EngineLoad(Closing):
    """`with EngineLoad(socket, 1) as load:` is under way once attached. `number` sets its keys apart."""

    def __init__(self, socket: Path, number: int) -> None:
        self.turns = 0
        self._engine = _CountedEngine(socket)
        self._detachments: list[dict[str, int]] = []
        self._next = number * 1_000_000
        self._faults: list[str] = []
        self._ended = threading.Event()
        self._turning = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"load {number}", daemon=True)

    def __enter__(self) -> EngineLoad:
        self._engine.__enter__().wait_attached()
        self._detachments = self._engine.detachments()
        self._thread.start()
        return self

    def close(self) -> None:
        self._ended.set()
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive(), "the load does not end"
        self._engine.close()

    def check(self) -> None:
        """Nothing has failed so far, and it still goes on."""
        reached, deadline = self.turns, time.monotonic() + _PATIENCE_S
        while self.turns < reached + 2 and not self._faults:
            assert time.monotonic() < deadline, f"the load stands still after {reached} turns"
            time.sleep(0.02)
        assert not self._faults, self._faults

    @property
    def lookups(self) -> int:
        """Lookups asked for so far."""
        return self._engine.asked

    def check_never_detached(self) -> None:
        """Neither of its two sessions has ended since it began."""
        assert self._engine.detachments() == self._detachments

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Between two turns, with nothing under way."""
        assert self._turning.acquire(timeout=_PATIENCE_S), "the load does not pause"
        try:
            yield
        finally:
            self._turning.release()

    def _run(self) -> None:
        try:
            self._store(HOT, 0)
            while not self._ended.wait(_REST_S):
                with self._turning:
                    self._turn()
                    # As a scheduler does at the end of its step: what it has counted goes to the worker.
                    self._engine.scheduler.flush()
                self.turns += 1
        except Exception as error:  # told by `check`
            self._faults.append(f"turn {self.turns}: {type(error).__name__}: {error}")

    def _turn(self) -> None:
        """Store a few fresh keys, load them, and load those that are always there."""
        fresh = [key_of(self._next + step) for step in range(_FRESH)]
        self._next += _FRESH
        self._store(fresh, len(HOT))
        self._load(fresh, len(HOT))
        grant = self._engine.ask(HOT)
        self._engine.scheduler.release(grant)
        assert states(grant) == [KeyState.HIT] * len(HOT), f"keys that are always there are answered {states(grant)}"
        self._load(HOT, 0)

    def _store(self, keys: list[bytes], first: int) -> None:
        for index, key in enumerate(keys, first):
            self._engine.write(index, key)
        result = self._engine.store(keys, [self._engine.chunk(first + step) for step in range(len(keys))])
        _all_copied(result, len(keys))

    def _load(self, keys: list[bytes], first: int) -> None:
        self._engine.zero()
        result = self._engine.load(keys, [self._engine.chunk(first + step) for step in range(len(keys))])
        _all_copied(result, len(keys))
        for index, key in enumerate(keys, first):
            assert self._engine.holds(index, key), f"wrong bytes under {key.hex()}"


class _CountedEngine(EngineSide):
    """Counts what it asks and how often it lost its worker."""

    asked = 0

    def ask(self, keys: Sequence[bytes], wait: float = 0.0, prefix: bool = True) -> Grant:
        self.asked += 1
        return super().ask(keys, wait, prefix)

    def detachments(self) -> list[dict[str, int]]:
        """Of scheduler and rank, by reason."""
        return [dict(side.detachments) for side in (self.scheduler, self.rank)]


def _all_copied(result: CopyResult, count: int) -> None:
    assert list(result.states) == [CopyState.OK] * count, f"{result.kind} came to {result}"
