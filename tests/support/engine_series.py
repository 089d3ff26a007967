"""What vLLM itself shows of an engine's numbers. Owns reading a scrape; what must come of it is the tests' matter."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "blockyard_engine_"
SCRAPE_S = 10.0


class Series:
    """One scrape of Blockyard's series, without vLLM's own labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._types: dict[str, str] = {}
        self._values: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX) and not sample.name.endswith("_created"):
                    ours = [value for name, value in sample.labels.items() if name not in ("model_name", "engine")]
                    name = sample.name.removeprefix(PREFIX)
                    self._types[name] = family.type
                    self._values[name, ",".join(ours)] = sample.value

    def get(self, name: str, label: str = "") -> float:
        """One series; KeyError if it is not there."""
        return self._values[name, label]

    def labels(self, name: str) -> dict[str, float]:
        """All series of a metric that are not 0, by their label."""
        return {label: value for (of, label), value in self._values.items() if of == name and value}

    def since(self, before: Series, name: str, label: str = "") -> float:
        """How much a series has grown."""
        return self.get(name, label) - before.get(name, label)

    def fallen(self, before: Series) -> list[tuple[str, str]]:
        """What may only grow and is less than before, or gone."""
        growing = [key for key in before._values if before._types[key[0]] != "gauge"]
        return [key for key in growing if self._values.get(key, -1.0) < before._values[key]]


def scraped(url: str) -> Series:
    """The series of an API server."""
    with urlopen(f"{url}/metrics", timeout=SCRAPE_S) as answer:
        return Series(answer.read().decode())


def shown_in_process() -> Series:
    """The same of an engine in the test's own process."""
    return Series(generate_latest(REGISTRY).decode())
