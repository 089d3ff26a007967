"""A scenario's text: paragraphs of comments, and of one command with what it is expected to bring about.

    # Why this step matters.
    deliver n1->L1 1
    ----
    L1 gets: delta 1: +a

Owns parsing and rendering, which are each other's inverse. Must never know what a command does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

RULE = "----"


class ScriptError(Exception):
    """A scenario cannot be read or run as it stands; the message names line and fault."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Lines between two empty ones. `command` is "" where there are only comments."""

    line: int
    comments: tuple[str, ...]
    command: str = ""
    expected: tuple[str, ...] = ()

    def render(self) -> list[str]:
        if not self.command:
            return [*self.comments]
        return [*self.comments, self.command, RULE, *self.expected]


@dataclass(frozen=True, slots=True)
class Script:
    """One scenario. The first paragraph says what it shows and why that matters."""

    name: str
    paragraphs: tuple[Paragraph, ...]

    def render(self) -> str:
        return "\n\n".join("\n".join(one.render()) for one in self.paragraphs) + "\n"

    def recorded(self, transcripts: list[list[str]]) -> Script:
        """The same script with these transcripts, one per command."""
        rest = iter(transcripts)
        return replace(
            self,
            paragraphs=tuple(
                replace(one, expected=tuple(next(rest))) if one.command else one for one in self.paragraphs
            ),
        )

    @property
    def commands(self) -> list[Paragraph]:
        return [one for one in self.paragraphs if one.command]


def parse(name: str, text: str) -> Script:
    """Raises ScriptError where the text is no scenario."""
    paragraphs: list[Paragraph] = []
    lines: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            lines.append(line.rstrip())
        elif lines:
            paragraphs.append(_paragraph(name, number - len(lines), lines))
            lines = []
    if not paragraphs or paragraphs[0].command:
        raise ScriptError(f"{name}: must open with lines that begin with # and say what it shows")
    return Script(name, tuple(paragraphs))


def _paragraph(name: str, first: int, lines: list[str]) -> Paragraph:
    end = next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comments, rest = tuple(lines[:end]), lines[end:]
    if not rest:
        return Paragraph(first, comments)
    if len(rest) < 2 or rest[1] != RULE:
        raise ScriptError(f"{name}:{first + end}: a command is one line, and {RULE} follows it")
    return Paragraph(first + end, comments, rest[0], tuple(rest[2:]))
