"""What the leader's clients wait. Owns the questions asked again and again, alone or beside a load; judges nothing."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from scale.keys import LONGEST, chain_keys, full_length, own_chain
from scale.leader_face import LeaderFace, NotAnswered, match_body
from scale.processes import Controlled, Usage

SHORT, LONG = 64, 500
_PATIENCE = 30.0
_ABSENT = (1 << 64) - 1


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds; empty without a measurement."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "p50_ms": round(1e3 * statistics.median(ordered), 3),
        "p99_ms": round(1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
        "max_ms": round(1e3 * ordered[-1], 3),
    }


class Prompts:
    """Bodies of match requests by name: of a chain that one worker holds, that most hold, and that nobody does."""

    def __init__(self, face: LeaderFace, generators: list[Controlled]) -> None:
        chains = {f"own_{LONG}": _own_long(generators), f"absent_{LONG}": _ABSENT}
        shared = next((chain for chain in range(10_000) if full_length(chain) == LONGEST), 0)
        chains |= {f"shared_{LONG}": shared, f"own_{SHORT}": chains[f"own_{LONG}"]}
        chains[f"shared_{SHORT}"] = next(chain for chain in range(10_000) if full_length(chain) >= SHORT)
        self.bodies: dict[str, bytes] = {}
        self.found: dict[str, dict[str, int]] = {}
        for name, chain in sorted(chains.items()):
            keys = chain_keys(chain, int(name.rpartition("_")[2]))
            lengths = face.match(keys)
            self.bodies[name] = match_body(keys)
            self.found[name] = {"workers": len(lengths), "longest": max(lengths.values(), default=0)}


def _own_long(generators: list[Controlled]) -> int:
    """A chain of its own of which some worker holds as much as is asked for; any one where there is none."""
    for number in range(100):
        for generator in generators:
            for chain, length in generator.ask("chains", worker=number)["chains"]:
                if length >= LONG and chain >= own_chain(0, 0):
                    return int(chain)
    return own_chain(0, 0)


def alone(face: LeaderFace, pid: int, prompts: Prompts, rounds: int, idle: float) -> dict[str, Any]:
    """Each question `rounds` times, one after the other; with the leader's CPU for each answer, beyond the share of a
    core that it takes when idle.
    """
    questions = {"healthz": partial(face.timed, "/healthz")}
    questions |= {f"match_{name}": partial(face.timed, "/v1/match", body) for name, body in prompts.bodies.items()}
    told = {}
    for name, question in questions.items():
        before = Usage.of(pid).cpu
        begun = time.monotonic()
        taken = [question() for _ in range(rounds)]
        cpu = Usage.of(pid).cpu - before - idle * (time.monotonic() - begun)
        told[name] = quantiles(taken) | {"leader_cpu_us": round(1e6 * max(0.0, cpu) / rounds)}
    return told


class Watchers:
    """`with Watchers(…) as watchers:` asks beside what goes on; `told` afterwards what was waited."""

    def __init__(self, face: LeaderFace, generators: list[Controlled], prompts: Prompts, seed: int) -> None:
        self._face = face
        self._generators = generators
        self._prompts = prompts
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._taken: defaultdict[str, list[float]] = defaultdict(list)
        self._unanswered = 0
        self.failed: list[str] = []
        loops = (self._healthz, self._matches, self._convergence)
        self._threads = [threading.Thread(target=self._guarded, args=(loop,), daemon=True) for loop in loops]

    def __enter__(self) -> Watchers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * _PATIENCE)

    def told(self) -> dict[str, Any]:
        """Quantiles by what was asked; raises if a question failed."""
        if self.failed:
            raise ConnectionError("; ".join(self.failed))
        told: dict[str, Any] = {name: quantiles(taken) for name, taken in sorted(self._taken.items())}
        return told | {"unanswered": self._unanswered}

    def _guarded(self, loop: Callable[[LeaderFace], None]) -> None:
        face = self._face.another()
        try:
            loop(face)
        except Exception as error:
            self.failed.append(f"{loop.__name__}: {error!r}")
        finally:
            face.close()

    def _healthz(self, face: LeaderFace) -> None:
        """A request that does nothing waits for its turn on the leader's loop, and for little else."""
        while not self._stop.wait(0.02):
            self._ask(face, "healthz", "/healthz")

    def _matches(self, face: LeaderFace) -> None:
        for name, body in itertools.cycle(self._prompts.bodies.items()):
            if self._stop.wait(0.05):
                return
            self._ask(face, f"match_{name}", "/v1/match", body)

    def _ask(self, face: LeaderFace, name: str, path: str, body: bytes | None = None) -> None:
        try:
            self._taken[name].append(face.timed(path, body))
        except NotAnswered:
            self._unanswered += 1

    def _convergence(self, face: LeaderFace) -> None:
        """From when a worker holds a new key, and from when it says so, until the leader knows."""
        for generator in itertools.cycle(self._generators):
            if self._stop.wait(0.2):
                return
            worker = self._random.randrange(1_000_000)
            probe = generator.ask("probe", worker=worker)
            while not self._known(face, probe):
                if time.monotonic() - probe["at"] > _PATIENCE:
                    raise TimeoutError(f"{probe} is not known to the leader after {_PATIENCE:g} s")
                time.sleep(0.002)
            known = time.monotonic()
            self._taken["convergence"].append(known - probe["at"])
            if (told := generator.ask("told", worker=worker, key=probe["key"])["at"]) is not None:
                self._taken["convergence_once_sent"].append(known - told)

    def _known(self, face: LeaderFace, probe: dict[str, Any]) -> bool:
        try:
            return probe["node"] in face.holders(probe["key"])
        except NotAnswered:
            self._unanswered += 1
            return False
