"""Whether the leader's index is what the workers hold. Owns the comparison; changes nothing.

Two questions make it whole: how many keys the leader counts for each node, and how far it says that each chain is held
where. A key too many or too few shows in the first, a wrong one in the second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from blockyard.common.messages.cluster import MAX_CHANGES
from scale.keys import chain_keys
from scale.leader_face import LeaderFace
from scale.processes import Controlled

_PAUSE = 0.2
_SLOTS = "blockyard_worker_slots"


class IndexIsWrong(Exception):
    """The leader says something else than the workers; the message names one difference."""


def wait_settled(generators: list[Controlled], timeout: float) -> None:
    """No more changes are made, and the leader has acknowledged all that were."""
    for generator in generators:
        generator.ask("rate", rate=0.0)
    deadline = time.monotonic() + timeout
    while True:
        states = [generator.ask("state") for generator in generators]
        owing = sum(state["depth"] for state in states)
        if all(state["settled"] == state["workers"] for state in states):
            return
        if time.monotonic() > deadline:
            raise IndexIsWrong(f"after {timeout:g} s {owing} changes are not acknowledged: {states}")
        time.sleep(_PAUSE)


def wait_counts(face: LeaderFace, generators: list[Controlled], timeout: float) -> int:
    """The leader counts as many keys for each node as it holds; returns the sum. Nothing may change meanwhile."""
    held = held_by_real(face)
    for generator in generators:
        held |= generator.ask("held")["held"]
    deadline = time.monotonic() + timeout
    while (different := _difference(face, held)) is not None:
        if time.monotonic() > deadline:
            raise IndexIsWrong(different)
        time.sleep(_PAUSE)
    return sum(held.values())


def check_chains(face: LeaderFace, generators: list[Controlled], workers: int, seed: int) -> int:
    """Ask for every chain of so many workers (all, if there are no more); returns how many chains were right."""
    checked = 0
    for generator, number in _chosen(generators, workers, seed):
        told = generator.ask("chains", worker=number)
        for chain, length in told["chains"]:
            # One more than is held: the first that must be missing.
            keys = chain_keys(chain, min(length + 1, MAX_CHANGES))
            found = face.match(keys).get(told["node"], 0)
            if found != length:
                raise IndexIsWrong(f"{told['node']} holds {length} of chain {chain:x}, the leader says {found}")
            checked += 1
    return checked


def held_by_real(face: LeaderFace) -> dict[str, int]:
    """Chunks that each real worker holds, by its own metrics."""
    held = {}
    for one in face.json("/v1/workers")["workers"]:
        if not one["metrics"]:
            continue
        host, _, port = one["metrics"].rpartition(":")
        own = LeaderFace(host, int(port))
        families = text_string_to_metric_families(own.ask("/metrics")[1].decode())
        slots = [sample for family in families for sample in family.samples if sample.name == _SLOTS]
        held[one["node"]] = int(sum(sample.value for sample in slots if sample.labels["state"] == "ready"))
        own.close()
    return held


def check_engines(face: LeaderFace, stored: Mapping[str, list[str]]) -> int:
    """Each key that an engine has stored is where its worker is; `stored` is by node."""
    for node, keys in stored.items():
        for key in keys:
            if node not in (holders := face.holders(key)):
                raise IndexIsWrong(f"{node} holds {key}, the leader says {sorted(holders)}")
    return sum(map(len, stored.values()))


def _chosen(generators: list[Controlled], workers: int, seed: int) -> Iterator[tuple[Controlled, int]]:
    every = [(generator, number) for generator in generators for number in range(generator.ask("state")["workers"])]
    yield from random.Random(seed).sample(every, min(workers, len(every)))


def _difference(face: LeaderFace, held: Mapping[str, int]) -> str | None:
    answer = face.json("/v1/workers")
    if answer["partial"]:
        return "the leader's index is partial"
    known = {one["node"]: one["keys"] for one in answer["workers"]}
    for node in held.keys() | known.keys():
        if held.get(node) != known.get(node):
            return f"{node} holds {held.get(node)} keys, the leader counts {known.get(node)}"
    return None
