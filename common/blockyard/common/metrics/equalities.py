"""What must add up. Owns the comparison of numbers with the table's equalities, never how they arose."""

from __future__ import annotations

from blockyard.common.metrics.counters import Counters
from blockyard.common.metrics.spec import Equality
from blockyard.common.metrics.table import EQUALITIES, TABLE


def broken(counters: Counters) -> list[str]:
    """One line for each equality of this part that does not hold; empty is good."""
    return [
        line
        for equality in EQUALITIES
        if TABLE[equality.whole].part is counters.part
        if (line := _difference(counters, equality))
    ]


def _difference(counters: Counters, equality: Equality) -> str | None:
    whole = counters.total(equality.whole)
    parts = {name: counters.total(name) for name in equality.parts}
    if whole == sum(parts.values()):
        return None
    sums = " + ".join(f"{name} {value:g}" for name, value in parts.items())
    return f"{equality.name}: {equality.whole} {whole:g} != {sums}"
