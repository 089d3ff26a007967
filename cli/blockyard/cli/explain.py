"""Owns `blockyard config explain`: every setting with its value, where that came from and what it may be.

It must never start anything or change anything.
"""

import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blockyard.cli.flags import ConfigFile
from blockyard.common.config import SettingError
from blockyard.common.config.load import DEFAULT, ROLES, Resolution, resolve
from blockyard.common.config.node import NodeConfig
from blockyard.common.config.sources import COMMON, PREFIX

_WRONG = 2


class Role(StrEnum):
    LEADER = "leader"
    WORKER = "worker"


def explain(
    role: Annotated[Role | None, typer.Argument(help="Whose settings; both if left out.")] = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show each setting: its value, where that came from, what it may be, what it means.

    Ends with 2 if what is shown would not start, and says why.
    """
    roles = [role.value] if role else list(ROLES)
    resolutions = {name: resolve(ROLES[name], name, {}, config, os.environ) for name in roles}
    problems = {name: _problem(resolution) for name, resolution in resolutions.items()}
    if as_json:
        described = {name: _described(name, resolutions[name], problems[name]) for name in roles}
        typer.echo(json.dumps(described, indent=2))
    else:
        console = Console()
        for name in roles:
            console.print(_table(name, resolutions[name], config))
    for name, problem in problems.items():
        if problem is not None:
            typer.echo(f"blockyard: a {name} would not start: {problem}", err=True)
    if any(problems.values()):
        raise typer.Exit(_WRONG)


def _problem(resolution: Resolution[NodeConfig]) -> str | None:
    try:
        resolution.build()
    except SettingError as error:
        return str(error)
    return None


def _described(role: str, resolution: Resolution[NodeConfig], problem: str | None) -> Mapping[str, object]:
    settings = [
        {
            "name": item.setting.name,
            "value": item.setting.show(item.value),
            "source": item.source,
            "default": item.setting.default_text,
            "unit": item.setting.kind.metavar,
            "expected": item.setting.kind.expected,
            "meaning": item.setting.help,
            "flag": item.setting.flag,
            "variable": f"{PREFIX}{role.upper()}_{item.setting.name.upper()}",
        }
        for item in resolution.settings
    ]
    return {"settings": settings, "problem": problem}


def _table(role: str, resolution: Resolution[NodeConfig], file: Path | None) -> Table:
    table = Table(
        title=f"Settings of a {role}",
        caption=Text(_precedence(role, file)),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("setting", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    table.add_column("may be", overflow="fold", style="dim")
    table.add_column("meaning", overflow="fold")
    group = None
    for item in resolution.settings:
        if item.setting.group != group:
            table.add_section()
            group = item.setting.group
        cells = (item.setting.show(item.value), item.source, item.setting.kind.expected, item.setting.help)
        # Text, not markup: an IPv6 address has brackets.
        table.add_row(item.setting.name, *map(Text, cells), style=None if item.source == DEFAULT else "green")
    return table


def _precedence(role: str, file: Path | None) -> str:
    own, shared = f"{PREFIX}{role.upper()}_*", f"{PREFIX}{COMMON.upper()}_*"
    return f"First found: flag, {own}, {shared}, [{role}] or [{COMMON}] of {file or 'a --config file'}, default."
