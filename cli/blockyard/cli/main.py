"""Owns the `blockyard` command: which sub-commands there are, and how a failure is told.

What a sub-command does lies elsewhere and is imported when it is called, so that help is quick and no command
needs what another one does. It must never contain a decision of a leader, a worker or an engine.
"""

import importlib
import sys
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any

import typer

from blockyard.cli.explain import explain
from blockyard.cli.flags import with_flags
from blockyard.cli.orders import commands as orders
from blockyard.common.config import LeaderConfig, WorkerConfig, load_leader, load_worker
from blockyard.common.errors import BlockyardError, ConfigError

FAILED = 1
WRONG_SETTING = 2

# typer has no name of its own for the class of all wrong uses of a command line.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

_HELP = {"help_option_names": ["-h", "--help"]}
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="blockyard",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
config_app = typer.Typer(no_args_is_help=True, help="Look at settings.")
config_app.command("explain")(explain)
app.add_typer(config_app, name="config")
for order in (orders.drain, orders.purge, orders.prefetch):
    app.command(order.__name__)(order)


def _leader(flags: dict[str, object], file: Path | None) -> None:
    """Run a leader: the index of what the cluster holds. Any number of standbys may run beside it."""
    _end(_call("blockyard.leader.main", load_leader(flags, file)))


def _worker(flags: dict[str, object], file: Path | None) -> None:
    """Run this node's worker: the host pool that engines attach to. It serves with or without a leader."""
    _end(_call("blockyard.worker.main", load_worker(flags, file)))


app.command("leader")(with_flags(LeaderConfig, _leader))
app.command("worker")(with_flags(WorkerConfig, _worker))


@app.command("fsck")
def fsck(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a worker's disk tier.")],
    each: Annotated[bool, typer.Option("--list", help="Print a line for each extent.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Drop what is damaged.")] = False,
) -> None:
    """Verify all that a stopped worker's directory holds. Without --repair nothing is changed.

    Ends with 0 if it is clean, with 1 if damage was found, with 2 if it cannot be checked.
    """
    _end(importlib.import_module("blockyard.worker.fsck.main").run(directory, each=each, mend=repair))


# Its own parser tells its help.
@app.command("demo", context_settings=_PASS_ON | {"help_option_names": []})
def demo(context: typer.Context) -> None:
    """Show a small cluster at work with real vLLM engines on this machine."""
    _end(_call("blockyard.cli.demo.main", context.args))


@app.command("demo-light", context_settings=_PASS_ON)
def demo_light(context: typer.Context) -> None:
    """Show a small cluster at work without vLLM, in seconds."""
    _end(_call("blockyard.cli.demo_light", context.args))


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(_version())


def _version() -> str:
    return f"blockyard {distribution_version('blockyard')}"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(_version())
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps the KV-cache blocks that serving engines drop, and brings them back."""


def main() -> None:
    """Entry point of the `blockyard` script. Whatever is wrong is one line."""
    try:
        # Without arguments the help is the answer; typer's own mode prints it.
        code = app(prog_name="blockyard", standalone_mode=len(sys.argv) == 1)
    except BlockyardError as error:
        typer.echo(f"blockyard: {error}", err=True)
        code = WRONG_SETTING if isinstance(error, ConfigError) else FAILED
    except _UsageError as error:
        _tell(error)
        code = WRONG_SETTING
    sys.exit(code or 0)


def _tell(error: Any) -> None:
    """A wrong use of the command line in one line; an error without words has shown the help already."""
    said = " ".join(error.format_message().split()).removesuffix(".")
    command = error.ctx.command_path if error.ctx else "blockyard"
    if said:
        typer.echo(f"blockyard: {said}; see {command} --help", err=True)


def _call(module: str, argument: object) -> Any:
    """`run(argument)` of a module that is imported only now."""
    return importlib.import_module(module).run(argument)


def _end(code: int | None) -> None:
    raise typer.Exit(code or 0)


if __name__ == "__main__":
    main()
