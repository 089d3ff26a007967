"""`blockyard demo-light`: a cluster of one node without vLLM, in seconds.

Real etcd, leader and worker; two small engines of different geometry on one pool. They compute blocks, store them,
lose them and load them again, one is killed in the middle of a store, and the leader is asked what lies where. Owns
the story and its verdict: any byte, count or answer that is not as it must be ends it with an error.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from blockyard.cli.demo.light_cluster import NODE, DemoFailed, EngineProcess, LightCluster
from blockyard.cli.demo.processes import ProcessFailed, Supervisor
from blockyard.common.errors import ConfigError

CHUNKS = 12
KILLED_AFTER = 5
INDEX_SECONDS = 10.0

UNKNOWN_KEY = "00" * 32


def run(arguments: Sequence[str] = ()) -> int:
    """Play the story; 0 if all of it went as it must."""
    if arguments:
        raise ConfigError(f"demo-light takes no arguments, got {' '.join(arguments)}")
    console = Console()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="by-") as name:
        folder = Path(name)
        story = Story(console)
        try:
            with Supervisor(folder / "log") as supervisor:
                story.play(LightCluster(supervisor, folder))
        except (DemoFailed, ProcessFailed) as error:
            console.print(f"[red]demo-light failed:[/red] {error}", highlight=False)
            return 1
    console.print(story.table)
    console.print(f"All bytes came back right. {time.monotonic() - begun:.1f} s, nothing left behind.")
    return 0


class Story:
    """Each step checks what it did and adds a row."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.table = Table(title="demo-light")
        self.table.add_column("what")
        self.table.add_column("outcome")

    def play(self, cluster: LightCluster) -> None:
        """The steps in order."""
        self._console.print("starting etcd, leader, worker and two engines …")
        cluster.start()
        wide, odd = cluster.start_engine("wide", "wide"), cluster.start_engine("odd", "odd")
        keys = {}
        for name, engine in (("wide", wide), ("odd", odd)):
            keys[name] = self._store(name, engine)
            self._load(f"{name}: zeroed and loaded again", engine, "morning")
        for name in keys:
            self._where(cluster, name, keys[name])
        self._kill_and_restart(cluster, wide)
        odd.close()

    def _store(self, name: str, engine: EngineProcess) -> list[str]:
        answer = engine.command("store", conversation="morning", chunks=CHUNKS)
        _expect(f"{name}: chunks stored", answer["stored"], CHUNKS)
        self.table.add_row(f"{name}: computed and stored", f"{CHUNKS} chunks, {_rate(answer)}")
        keys: list[str] = answer["keys"]
        return keys

    def _load(self, what: str, engine: EngineProcess, conversation: str) -> None:
        answer = engine.command("load", conversation=conversation, chunks=CHUNKS)
        _expect(f"{what}: hits", answer["hits"], CHUNKS)
        _expect(f"{what}: chunks loaded", answer["loaded"], CHUNKS)
        _expect(f"{what}: chunks with wrong bytes", answer["wrong"], 0)
        self.table.add_row(what, f"{CHUNKS} bit-exact, {_rate(answer)}")

    def _where(self, cluster: LightCluster, name: str, keys: list[str]) -> None:
        """The leader knows every chunk a moment after it was stored."""
        deadline = time.monotonic() + INDEX_SECONDS
        while (length := _match(cluster, keys)) != len(keys) and time.monotonic() < deadline:
            time.sleep(0.05)
        _expect(f"leader, /v1/match of {name}: length", length, len(keys))
        _expect(f"leader, /v1/match of {name} after a gap", _match(cluster, [UNKNOWN_KEY, *keys]), 0)
        holders = [holder["node"] for holder in cluster.ask_leader(f"/v1/where?key={keys[-1]}")["holders"]]
        _expect(f"leader, /v1/where of {name}'s last chunk", holders, [NODE])
        self.table.add_row(f"leader: match, where of {name}", f"{length} chunks on {NODE}")

    def _kill_and_restart(self, cluster: LightCluster, engine: EngineProcess) -> None:
        """An engine dies with a store half done; its successor hits what was whole and can store the rest."""
        engine.command("stall", conversation="noon", chunks=CHUNKS, stall_after=KILLED_AFTER)
        engine.kill()
        self.table.add_row("wide: SIGKILL inside a store", f"after {KILLED_AFTER} of {CHUNKS} chunks")
        successor = cluster.start_engine("wide-again", "wide")
        self._load("wide, restarted: earlier chunks", successor, "morning")
        torn = successor.command("load", conversation="noon", chunks=CHUNKS)
        _expect("wide, restarted: chunks of the torn store that hit", torn["hits"], 0)
        answer = successor.command("store", conversation="noon", chunks=CHUNKS)
        _expect("wide, restarted: chunks of the torn store stored anew", answer["stored"], CHUNKS)
        self._load("wide, restarted: torn store, redone", successor, "noon")
        successor.close()


def _match(cluster: LightCluster, keys: list[str]) -> int:
    """Longest prefix of these keys on the demo's only node."""
    workers = cluster.ask_leader(f"/v1/match?keys={','.join(keys)}")["workers"]
    return max((int(worker["length"]) for worker in workers if worker["node"] == NODE), default=0)


def _expect(what: str, found: object, right: object) -> None:
    if found != right:
        raise DemoFailed(f"{what}: found {found}, right is {right}")


def _rate(answer: dict[str, Any]) -> str:
    size, seconds = answer["bytes"], answer["seconds"]
    return f"{size / 2**20:.1f} MiB in {seconds * 1000:.1f} ms" if seconds else f"{size / 2**20:.1f} MiB"
