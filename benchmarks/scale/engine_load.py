"""A light load on a few real workers: one engine at each stores conversation after conversation, so that its pool
evicts. Owns the engines' commands and the keys stored last.
"""

from __future__ import annotations

import itertools
import threading
from types import TracebackType

from scale.processes import Controlled, ScaleCluster

CHUNKS = 12
_PAUSE = 0.25


class EngineLoad:
    """`with EngineLoad(cluster, 2) as load:` stores until its end; `stored` has the latest keys by node."""

    def __init__(self, cluster: ScaleCluster, count: int) -> None:
        self._engines = {real: cluster.start_engine(real) for real in itertools.islice(cluster.real, count)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.stored: dict[str, list[str]] = {}
        self.failed: Exception | None = None

    def __enter__(self) -> EngineLoad:
        for node, engine in self._engines.items():
            self._store(node, engine, 0)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60.0)
        if self.failed is not None and error is None:
            raise self.failed

    def _run(self) -> None:
        try:
            for number in itertools.count(1):
                for node, engine in self._engines.items():
                    if self._stop.wait(_PAUSE):
                        return
                    self._store(node, engine, number)
        except Exception as error:
            self.failed = error

    def _store(self, node: str, engine: Controlled, number: int) -> None:
        self.stored[node] = engine.ask("store", conversation=f"{node}/{number}", chunks=CHUNKS)["keys"]
