"""Runs scenarios and compares what happens with what is recorded. Owns the folder of scripts; knows no command."""

from __future__ import annotations

import difflib
from pathlib import Path

from scenarios import verbs_cluster, verbs_engine, verbs_look, verbs_orders
from scenarios.arguments import Command
from scenarios.script import Script, ScriptError, parse
from scenarios.world import World

FOLDER = Path(__file__).parent
VERBS = {**verbs_look.VERBS, **verbs_engine.VERBS, **verbs_cluster.VERBS, **verbs_orders.VERBS}


def scripts() -> list[Path]:
    """All scenarios, by name."""
    return sorted(FOLDER.glob("*.txt"))


def commands() -> list[str]:
    """What each command is for, in its own words."""
    return [f"  {' '.join((act.__doc__ or '').split())}" for act in VERBS.values()]


def run(script: Script) -> list[list[str]]:
    """The transcript of each command. Raises ScriptError, with its line, where a command cannot be carried out."""
    world = World()
    transcripts = []
    for paragraph in script.commands:
        try:
            command = Command(paragraph.command)
            if command.verb not in VERBS:
                raise ScriptError(f"{command.verb!r} is no command; there are {', '.join(sorted(VERBS))}")
            VERBS[command.verb](world, command)
            world.observe()
        except (ScriptError, ValueError, LookupError) as error:
            raise ScriptError(f"{script.name}:{paragraph.line}: {paragraph.command}: {error}") from error
        transcripts.append(world.transcript.take())
    return transcripts


def record(name: str, text: str) -> str:
    """The text as it would be recorded now."""
    script = parse(name, text)
    return script.recorded(run(script)).render()


def difference(name: str, text: str) -> str:
    """A unified diff from what is recorded to what happens; empty when they are the same."""
    now = record(name, text)
    lines = difflib.unified_diff(
        text.splitlines(), now.splitlines(), f"{name} as recorded", f"{name} as it runs", lineterm=""
    )
    return "\n".join(lines)
