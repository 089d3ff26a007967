"""Owns the making of command-line flags from declared settings. It must never know a particular setting.

Every flag is taken as text: the setting's own kind parses it, so a wrong flag and a wrong variable read
alike.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from blockyard.common.config.kinds import Switch
from blockyard.common.config.load import FILE_VARIABLE
from blockyard.common.config.settings import NOT_SET, Setting, settings_of

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help=f"TOML file with settings; variable {FILE_VARIABLE} names it too."),
]


def with_flags(config: type, run: Callable[[dict[str, object], Path | None], None]) -> Callable[..., None]:
    """A command that takes --config and a flag for each setting of `config`, and calls `run(flags, file)`."""

    def command(config: Path | None = None, **flags: object) -> None:
        run(flags, config)

    parameters = [_parameter("config", ConfigFile)]
    parameters += [_parameter(setting.name, _option(setting)) for setting in settings_of(config)]
    # typer reads a command's options from its signature and annotations, so these are given to it.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = run.__doc__
    return command


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(setting: Setting) -> Any:
    shown = escape(setting.help)
    if setting.default_text != NOT_SET:
        shown += f" [dim]{escape(f'[default: {setting.default_text}]')}[/dim]"
    if isinstance(setting.kind, Switch):
        name = setting.flag.removeprefix("--")
        return Annotated[
            bool | None,
            typer.Option(f"--{name}/--no-{name}", help=shown, rich_help_panel=setting.group),
        ]
    return Annotated[
        list[str] | None if setting.kind.repeatable else str | None,
        typer.Option(setting.flag, metavar=setting.kind.metavar, help=shown, rich_help_panel=setting.group),
    ]
