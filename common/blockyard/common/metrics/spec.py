"""What a metric declaration is. Owns the vocabulary of the table; must never know a single metric's name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Part(StrEnum):
    """Whose numbers they are. An engine's are shown by the worker that it is attached to."""

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
    """One row of the table."""

    name: str
    kind: Kind
    part: Part
    meaning: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)


@dataclass(frozen=True, slots=True)
class Equality:
    """`whole` equals the sum of `parts`, each summed over its labels.

    `at_rest` equalities hold only while nothing is in flight; the others hold at every moment.
    """

    name: str
    whole: str
    parts: tuple[str, ...]
    meaning: str
    at_rest: bool = False
