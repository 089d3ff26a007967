"""One light engine as a process: obeys commands that come over a Unix socket, one JSON object a line.

    python -m blockyard.engine.light.process CONTROL_SOCKET WORKER_SOCKET NAME GEOMETRY

It connects to the control socket, says {"ready": NAME}, and then answers each command with one line. Owns the
commands; must never decide which come when. It ends when the control connection does.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from blockyard.common.errors import BlockyardError
from blockyard.common.logs import set_up
from blockyard.common.messages.states import CopyState
from blockyard.engine.light.engine import LightEngine, LightEngineFailed, count
from blockyard.engine.light.world import GEOMETRIES

STALL_SECONDS = 20.0


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """What to do with a conversation of so many chunks; `stall_after` is for `stall` alone."""

    do: str
    conversation: str = ""
    chunks: int = 1
    stall_after: int = 0


def obey(engine: LightEngine, command: Command) -> dict[str, Any]:
    """Carry out one command."""
    name, chunks = command.conversation, command.chunks
    if command.do == "store":
        engine.compute(name, chunks)
        result = engine.store(name, chunks)
        return {
            "stored": count(result, CopyState.OK),
            "present": count(result, CopyState.DUPLICATE),
            "bytes": result.copied,
            "seconds": result.seconds,
            "keys": [key.hex() for key in engine.keys(name, chunks)],
        }
    if command.do == "load":
        engine.lose()
        hits, load = engine.load(name, chunks)
        loaded = count(load, CopyState.OK) if load else 0
        return {
            "hits": hits,
            "loaded": loaded,
            "wrong": engine.wrong_chunks(name, loaded),
            "unverified": load.unverified if load else 0,
            "bytes": load.copied if load else 0,
            "seconds": load.seconds if load else 0.0,
        }
    if command.do == "stall":
        engine.compute(name, chunks)
        engine.copier.stall_after = command.stall_after
        engine.begin_store(name, chunks)
        if not engine.copier.stalled.wait(STALL_SECONDS):
            raise LightEngineFailed(f"the store has not come to chunk {command.stall_after}")
        return {"copied": command.stall_after}
    raise LightEngineFailed(f"unknown command {command.do!r}")


def main(control: str, worker: str, name: str, geometry: str) -> int:
    """Run until the control connection ends."""
    set_up("info", name)
    engine = LightEngine(Path(worker), name, GEOMETRIES[geometry])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(control)
        with connection.makefile("rw", encoding="utf-8") as lines:
            try:
                engine.start()
                _say(lines, {"ready": name})
                for line in lines:
                    _say(lines, obey(engine, msgspec.json.decode(line, type=Command)))
            except BlockyardError as error:
                _say(lines, {"error": str(error)})
                return 1
            finally:
                engine.copier.resume.set()
                engine.close()
    return 0


def _say(lines: Any, answer: dict[str, Any]) -> None:
    lines.write(json.dumps(answer) + "\n")
    lines.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
