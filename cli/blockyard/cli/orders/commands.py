"""Owns the commands `drain`, `purge` and `prefetch`: their flags, and what of them cannot be meant.

Each ends with 0 if all has come about, 1 if the leader cannot be asked or refuses, 2 for a wrong use, 3 if not all of
it has come about.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from blockyard.cli.orders import draining
from blockyard.cli.orders.api import Api
from blockyard.cli.orders.waiting import follow

_KEY_DIGITS = 64
_MOST_SECONDS = 86_400.0

Worker = Annotated[str, typer.Argument(metavar="WORKER", help="Node id of the worker.")]
Leader = Annotated[
    str, typer.Option("--leader", metavar="HOST:PORT,…", help="Where one or several leaders serve HTTP.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Key = Annotated[list[str] | None, typer.Option("--key", metavar="HEX", help="A key; may be given several times.")]
KeysFile = Annotated[
    Path | None, typer.Option("--keys", metavar="FILE", help="File with a key a line; - reads standard input.")
]
Deadline = Annotated[
    float, typer.Option("--deadline", min=0.1, max=_MOST_SECONDS, help="Seconds that workers have for it.")
]

DEFAULT_LEADER = "127.0.0.1:7500"


def drain(
    worker: Worker,
    leader: Leader = DEFAULT_LEADER,
    undo: Annotated[bool, typer.Option("--undo", help="Let the worker work as before.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is drained.")] = True,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=_MOST_SECONDS, help="Seconds to wait at most.")
    ] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Empty a worker before it goes: others fetch what it alone holds, and it takes in nothing new.

    Ends with 0 if it is drained, with 3 if chunks are left on it alone; nothing is dropped. It stays drained until
    --undo or its end.
    """
    api = Api(leader)
    if undo:
        draining.undo(api, worker, as_json)
    else:
        draining.drain(api, worker, timeout, wait, as_json)


def purge(
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", metavar="HEX", help="A world, as vLLM's log has it.")
    ] = "",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="All worlds of a model.")] = "",
    key: Key = None,
    keys: KeysFile = None,
    deadline: Deadline = 60.0,
    leader: Leader = DEFAULT_LEADER,
    as_json: AsJson = False,
) -> None:
    """Drop chunks everywhere, from memory and disk: of a fingerprint, of a model, or by their keys.

    Ends with 0 if every worker has done it, with 3 if one has not.
    """
    given = _keys(key, keys)
    if sum(map(bool, (fingerprint, model, given))) != 1:
        raise typer.BadParameter("exactly one of --fingerprint, --model and keys (--key, --keys) must be given")
    if fingerprint:
        _hex("--fingerprint", fingerprint)
    what = {"fingerprint": fingerprint} if fingerprint else {"model": model} if model else {"keys": given}
    api = Api(leader)
    follow(api, api.ask("POST", "/v1/purge", {**what, "deadline_s": deadline}), deadline, as_json)


def prefetch(
    worker: Worker,
    key: Key = None,
    keys: KeysFile = None,
    deadline: Deadline = 60.0,
    leader: Leader = DEFAULT_LEADER,
    as_json: AsJson = False,
) -> None:
    """Bring chunks into a worker's host memory, from its disk or from other workers, before they are asked for.

    Ends with 0 if all are there, with 3 if one could not be had.
    """
    given = _keys(key, keys)
    if not given:
        raise typer.BadParameter("at least one key must be given, by --key or --keys")
    api = Api(leader)
    body = {"worker": worker, "keys": given, "deadline_s": deadline}
    follow(api, api.ask("POST", "/v1/prefetch", body), deadline, as_json)


def _keys(given: list[str] | None, file: Path | None) -> list[str]:
    found = list(given or [])
    if file is not None:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise typer.BadParameter(f"--keys {file}: {reason}") from None
        found += text.split()
    for one in found:
        _hex("key", one)
    return found


def _hex(what: str, text: str) -> None:
    if len(text) != _KEY_DIGITS or any(digit not in "0123456789abcdefABCDEF" for digit in text):
        shown = f"{what} {text[:80]!r}"
        raise typer.BadParameter(f"{shown}: must be {_KEY_DIGITS} hex digits, and has {len(text)} characters")
