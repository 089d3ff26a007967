"""What a check found, for people. Owns words, columns and sums; judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from blockyard.worker.disk.format.names import segment_name
from blockyard.worker.disk.format.values import Extent, Shape
from blockyard.worker.disk.recovery import Kind, Trouble
from blockyard.worker.fsck.repair import Repaired
from blockyard.worker.fsck.walk import CheckedSegment, Judged

_FATE = {
    Kind.DAMAGED: "damaged; the next start of a worker removes it",
    Kind.UNREADABLE: "cannot be read now; left alone",
    Kind.FOREIGN: "of another version; left alone",
    Kind.LEFTOVER: "half made when a worker ended; the next start of a worker removes it",
}
_SHOWN_DIGITS = 12


class Report:
    """Takes segments one by one, so that a long check can list as it goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._extents = self._bytes = self._segments = 0
        self._table = Table(title="Segments", title_justify="left")
        for name, right in (("segment", False), ("size", True), ("extents", True), ("damaged", True)):
            self._table.add_column(name, justify="right" if right else "left", no_wrap=True)
        self._table.add_column("state", overflow="fold")
        self._table.add_column("model (fingerprint)", overflow="fold")

    def head_of_list(self) -> None:
        self._line(_columns("key", "group", "bytes", "segment", "offset", "state", "model"))

    def extents(self, segment: CheckedSegment) -> None:
        """A line for each extent."""
        for one in segment.judged:
            shape = one.extent.shape
            place = (f"{segment.number:016x}", one.extent.offset)
            state = "damaged" if one.damage else "ok"
            self._line(
                _columns(one.extent.key.hex(), shape.group, shape.extent_bytes, *place, state, shown(shape.model))
            )

    def take(self, segment: CheckedSegment) -> None:
        """Into the table and the sums."""
        self._segments += 1
        self._extents += len(segment.judged)
        self._bytes += sum(one.extent.shape.extent_bytes for one in segment.judged)
        damaged = len(segment.damaged)
        self._table.add_row(
            f"{segment.number:016x}",
            size(segment.size),
            str(len(segment.judged)),
            str(damaged),
            Text(_state(segment)),
            Text("\n".join(_models(one.extent.shape for one in segment.judged))),
            style="red" if damaged or segment.log_damage else None,
        )

    def segments(self) -> None:
        if self._segments:
            self._console.print(self._table)

    def troubles(self, troubles: list[Trouble]) -> None:
        for one in troubles:
            self._line(f"{one.name}: {_FATE[one.kind]} ({one.detail})")

    def damage(self, damaged: list[Judged]) -> None:
        for one in damaged:
            self._line(f"{place(one.extent)}: {one.damage}")

    def repaired(self, done: Repaired) -> None:
        for trouble in done.removed:
            self._line(f"{trouble.name}: removed ({trouble.detail})")
        for extent in done.dropped:
            self._line(f"{place(extent)}: dropped")
        for extent in done.kept:
            self._line(f"{place(extent)}: not dropped, its log takes no more")

    def verdict(self, faults: int, repaired: bool) -> None:
        held = f"{self._segments:,} segments, {self._extents:,} extents, {size(self._bytes)}"
        if not faults:
            said = "clean"
        else:
            said = f"{faults:,} damaged" + ("" if repaired else "; --repair drops what is damaged")
        self._console.print(Text(f"{held}: {said}", style="bold red" if faults else "bold green"), soft_wrap=True)

    def _line(self, text: str) -> None:
        self._console.out(text, highlight=False)


def place(extent: Extent) -> str:
    """Where an extent lies, and whose it is."""
    return f"{segment_name(extent.segment)} at {extent.offset}, key {extent.key.hex()[:_SHOWN_DIGITS]}"


def size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def shown(name: str) -> str:
    """A model's name as it stands on disk, without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in name)


def _columns(*values: object) -> str:
    key, group, count, segment, offset, state, model = map(str, values)
    return f"{key:64}  {group:>5}  {count:>10}  {segment:16}  {offset:>12}  {state:7}  {model}"


def _state(segment: CheckedSegment) -> str:
    if segment.log_damage:
        return f"log damaged: {segment.log_damage}"
    if segment.sealed:
        return "sealed"
    unfinished = f", {segment.unfinished} unfinished writes" if segment.unfinished else ""
    return f"not sealed: its worker was killed{unfinished}"


def _models(shapes: Iterable[Shape]) -> list[str]:
    return sorted({f"{shown(shape.model)} ({shape.fingerprint.hex()[:_SHOWN_DIGITS]})" for shape in shapes})
