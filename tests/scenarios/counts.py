"""Counters that say why something did not go well. Owns which have moved since they were last looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blockyard.common.metrics.counters import Counters


class Counts:
    """Of one core: those of `names`, which begin with `prefix` and end with `_total`."""

    def __init__(self, counters: Counters, prefix: str, names: Iterable[str]) -> None:
        self._counters = counters
        self._prefix = prefix
        self._names = {f"{prefix}{name}_total" for name in names}
        self._before: dict[tuple[str, ...], float] = {}

    def moved(self) -> Iterator[str]:
        """`evictions room +1`, in the order of names."""
        after = {key: cells[0] for key, cells in self._counters.rows() if key[0] in self._names}
        for key, value in sorted(after.items()):
            rise = value - self._before.get(key, 0)
            if rise:
                name = key[0].removeprefix(self._prefix).removesuffix("_total").replace("_", " ")
                yield f"{' '.join([name, *key[1:]])} +{rise:g}"
        self._before = after
