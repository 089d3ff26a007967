"""What is recorded is what runs; a scenario says why it is there; a script that cannot be carried out says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.record import VERBS, difference, record, run, scripts
from scenarios.script import ScriptError, parse

SCRIPTS = scripts()
MAX_LINES = 6
"""Of a transcript, as a rule: a longer one is hard to review."""

SMALL = """\
# A story in three steps.
#
# It matters here alone.

worker n1 boot
----
ok

attach e1
----
n1 welcomes e1.r0 as session 1; e1.scheduler as session 2

acquire e1 keys=a
----
n1 tells e1.scheduler: no grant: a never-stored
"""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_recorded_is_what_runs(path: Path) -> None:
    """Review a difference like code; if it is right, record it: PYTHONPATH=tests python -m scenarios --rewrite."""
    changed = difference(path.name, path.read_text(encoding="utf-8"))
    if changed:
        pytest.fail(changed, pytrace=False)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_scenario_says_what_it_shows_and_why_that_matters(path: Path) -> None:
    script = parse(path.name, path.read_text(encoding="utf-8"))
    what, empty, *why = script.paragraphs[0].comments
    assert what.endswith(".") and empty == "#" and why, f"{path.name}: one line, #, and then why"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcripts_are_short(path: Path) -> None:
    script = parse(path.name, path.read_text(encoding="utf-8"))
    longest = max(script.commands, key=lambda one: len(one.expected))
    assert len(longest.expected) <= MAX_LINES, f"{path.name}:{longest.line}"


def test_every_command_is_part_of_a_scenario() -> None:
    used = {
        paragraph.command.split()[0]
        for path in SCRIPTS
        for paragraph in parse(path.name, path.read_text(encoding="utf-8")).commands
    }
    assert used == set(VERBS)


def test_a_script_is_rendered_as_it_was_written() -> None:
    assert parse("small.txt", SMALL).render() == SMALL
    assert record("small.txt", SMALL) == SMALL


def test_a_difference_is_shown_as_a_diff() -> None:
    changed = difference("small.txt", SMALL.replace("never-stored", "hit"))
    assert "-n1 tells e1.scheduler: no grant: a hit" in changed.splitlines()
    assert "+n1 tells e1.scheduler: no grant: a never-stored" in changed.splitlines()


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("fly n1", "'fly' is no command"),
        ("worker n1 boot pages=many", "pages=many must be a whole number"),
        ("worker n1 boot wings=2", "there is no setting 'wings'"),
        ("attach e1 twice", "twice is not for this command"),
        ("fill e9 keys=a", "there is no engine 'e9'"),
        ("acquire e1", "keys= is missing"),
        ("tick soon", "time 'soon': must be like 200ms or 5s"),
        ("register n1 incarnation=0\n----\n\nregister n1 incarnation=1", "etcd is at 1, and only goes up"),
        ("done e1.r0 states=fine", "state 'fine': must be one of ok"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_which_and_why(command: str, fault: str) -> None:
    script = parse("wrong.txt", f"{SMALL}\n{command}\n----\n")
    with pytest.raises(ScriptError, match=r"wrong\.txt:\d+: ") as error:
        run(script)
    assert fault in str(error.value)


@pytest.mark.parametrize("text", ["", "tick\n----\n", "# what\n\ntick\ntick\n----\n", "# what\n\ntick\n"])
def test_a_text_that_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(ScriptError, match=r"^wrong\.txt"):
        parse("wrong.txt", text)
