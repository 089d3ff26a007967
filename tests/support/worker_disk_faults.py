"""Faults below the disk tier of a real worker: it runs on disk_faults.FaultyDirectory, and does here as it is told.

Owns both ends of that: what is patched in the worker before its own code, and the words between it and the test.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from support.disk_faults import OPERATIONS, Fault, FaultyDirectory, Kind

_ANSWER_SECONDS = 30.0
_numbers = itertools.count(1)


class Seen(NamedTuple):
    """What a directory's faulty layer has met: all operations, those hit by a fault, and those that hang now."""

    operations: int
    injected: int
    hanging: int


class DiskFaults:
    """`WorkerProcess(program=faults.program)` runs on directories that fail as told here.

    `first` are the faults that each directory has from its start on.
    """

    def __init__(self, first: Mapping[Path, Sequence[Fault]] | None = None) -> None:
        # An abstract address: it goes with the process that has it, however that ends.
        self._name = f"blockyard-disk-faults-{os.getpid()}-{next(_numbers)}"
        written = {str(path): [_written(fault) for fault in faults] for path, faults in (first or {}).items()}
        tests = str(Path(__file__).parents[1])
        self.program = (
            f"import sys; sys.path.insert(0, {tests!r}); from support import worker_disk_faults; "
            f"worker_disk_faults.install({self._name!r}, {written!r})"
        )

    def inject(
        self, folder: Path, kind: Kind, on: Collection[str] = OPERATIONS, times: int = 0, **how: str | float
    ) -> None:
        """From now on operations of this directory fail like this, for ever unless `times` says how often."""
        fault = replace(Fault(kind, frozenset(on), times=times), **how)  # type: ignore[arg-type]
        self._say(folder, {"fault": _written(fault)})

    def heal(self, folder: Path) -> None:
        """No fault is left, and what hangs goes on."""
        self._say(folder, {"heal": True})

    def seen(self, folder: Path) -> Seen:
        return self._say(folder, {})

    def _say(self, folder: Path, what: dict[str, Any]) -> Seen:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(f"\0{self._name}")
            with connection.makefile("rw") as lines:
                lines.write(json.dumps({"folder": str(folder), **what}) + "\n")
                lines.flush()
                return Seen(*json.loads(lines.readline()))


def install(name: str, first: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """In the worker, before its program."""
    from blockyard.worker.disk import side

    layers = _Layers(first, side.RealDirectory)
    vars(side)["RealDirectory"] = layers.open
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    threading.Thread(target=_obey, args=(listener, layers), name="disk faults", daemon=True).start()


class _Layers:
    """The faulty layer of each directory: one for all times that it is opened."""

    def __init__(self, first: Mapping[str, Sequence[dict[str, Any]]], real: Any) -> None:
        self._first = first
        self._real = real
        self._layers: dict[str, FaultyDirectory] = {}
        self._opened = threading.Condition()

    def open(self, path: Path, **how: Any) -> FaultyDirectory:
        """In the place of RealDirectory."""
        with self._opened:
            layer = self._layers.get(str(path))
            if layer is None:
                layer = self._layers[str(path)] = FaultyDirectory(self._real(path, **how))
                for fault in self._first.get(str(path), ()):
                    layer.inject(_read(fault))
                self._opened.notify_all()
            return layer

    def obey(self, command: dict[str, Any]) -> Seen:
        with self._opened:
            assert self._opened.wait_for(lambda: command["folder"] in self._layers, _ANSWER_SECONDS), command
            layer = self._layers[command["folder"]]
        if "fault" in command:
            layer.inject(_read(command["fault"]))
        if "heal" in command:
            layer.heal()
        return Seen(layer.operations, layer.injected, layer.hanging)


def _obey(listener: socket.socket, layers: _Layers) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            lines.write(json.dumps(layers.obey(json.loads(lines.readline()))) + "\n")


def _written(fault: Fault) -> dict[str, Any]:
    return asdict(fault) | {"kind": fault.kind.value, "on": sorted(fault.on)}


def _read(written: dict[str, Any]) -> Fault:
    return Fault(**(written | {"kind": Kind(written["kind"]), "on": frozenset(written["on"])}))
