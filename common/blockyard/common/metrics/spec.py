"""What a metric declaration is. Owns the vocabulary of the table; must never know a single metric's name."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Part(StrEnum):
    """Whose numbers they are. An engine's are shown by vLLM itself and by the worker that it is attached to."""

    WORKER = "worker"
    LEADER = "leader"
    ENGINE = "engine"


# Labels that every series of a part carries, so that a dashboard needs nothing from the scrape configuration.
IDENTITY: dict[Part, tuple[str, ...]] = {
    Part.WORKER: ("cluster", "worker"),
    Part.LEADER: ("cluster", "leader"),
    Part.ENGINE: ("cluster", "worker", "engine"),
}


@dataclass(frozen=True, slots=True)
class Label:
    """A label and all values it may take; `values` empty means free text that is one value per process."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. `at_worker`: whether an engine's metric is told to its worker, or shown by vLLM alone."""

    name: str
    kind: Kind
    part: Part
    meaning: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    at_worker: bool = True
    label_names: tuple[str, ...] = field(init=False)
    label_set: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(label.name for label in self.labels)
        object.__setattr__(self, "label_names", names)
        object.__setattr__(self, "label_set", frozenset(names))


@dataclass(frozen=True, slots=True)
class Equality:
    """`whole` equals the sum of `parts`, each summed over its labels.

    It holds after every event, not only when nothing is in flight.
    """

    name: str
    whole: str
    parts: tuple[str, ...]
    meaning: str
